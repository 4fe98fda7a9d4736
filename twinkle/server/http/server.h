// An HTTP/1.1 server: one thread, coroutines, no thread per connection (RFC 9112).
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "twinkle/base/fields/options.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/loop.h"

namespace twinkle::server {

struct HttpOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 0;
  std::string unix_socket;
  int64_t max_header_bytes = 64 << 10;
  int64_t max_connections = 10000;
  int64_t max_sending_bytes = int64_t{1} << 30;
  std::chrono::milliseconds patience{30000};
  std::chrono::milliseconds body_time{60000};
  std::chrono::milliseconds keep_alive{75000};

  bool has_port() const { return address != "none"; }

  static constexpr auto fields() {
    using O = HttpOptions;
    return std::tuple{
        option("host", &O::address, any(),
               "IP address to listen on; none: unix_socket alone is served"),
        option("port", &O::port, between(0, 65535), "port to listen on; 0 is a free one"),
        option("unix_socket", &O::unix_socket, any(),
               "path of a Unix socket to serve, too, for processes of this user alone"),
        option("max_header_bytes", &O::max_header_bytes, between(1024, 1 << 20),
               "bytes of a request's head; a longer one is 431"),
        option("max_connections", &O::max_connections, between(1, 1e6),
               "connections that are open; one more closes the longest idle one of whoever has "
               "most. The "
               "last eighth of them, 64 at most, is only for probes: other requests there get 503"),
        option("max_sending_bytes", &O::max_sending_bytes, between(1 << 20, kMostBytes),
               "bytes of responses that clients have not taken yet; where there would be more, the "
               "connection that has been at it longest is closed"),
        option("patience_seconds", &O::patience, between(0.001, 3600),
               "seconds for a request's head, until more of its body comes, and until a client "
               "takes more of a response"),
        option("body_seconds", &O::body_time, between(0.001, 3600),
               "seconds that a request's body may take to come, or a response to be taken, and one "
               "more for each MiB that has; a slower connection is closed"),
        option("keep_alive_seconds", &O::keep_alive, between(0.001, 86400),
               "seconds that a connection stays open between requests")};
  }
};

// How many of so many connections are kept for probes, as Head::beyond tells.
constexpr int64_t connections_for_probes(int64_t max_connections) {
  return max_connections < 2 ? 0 : std::clamp<int64_t>(max_connections / 8, 1, 64);
}

class HttpServer : public Loop {
 public:
  // Listens at once, and runs what is posted; Error kInvalid names the address and port, or the
  // Unix socket, that cannot be had.
  explicit HttpServer(const HttpOptions& options);
  HttpServer(const HttpOptions& options, Handler handler) : HttpServer(options) {
    serve(std::move(handler));
  }
  ~HttpServer() override;  // closes all connections; what was posted or waits is dropped
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Takes requests from here on; those that came before have waited. Once.
  void serve(Handler handler);

  void post(std::function<void()> run) override;
  void after(std::chrono::milliseconds time, std::function<void()> run) override;
  std::chrono::milliseconds now() const override;

  // Takes over all but the address and max_header_bytes, for what comes from then on. Connections
  // that are open stay, also above a lower max_connections. Any thread.
  void set(const HttpOptions& options);

  uint16_t port() const;            // 0: it has none
  int64_t num_connections() const;  // any thread

  // Takes no new connection and no new request; returns when those that have begun are answered,
  // or after `limit`.
  void drain(std::chrono::milliseconds limit);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace twinkle::server
