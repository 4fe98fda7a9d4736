// A connection of the HTTP server: its place among all of them, and the responses that it is sent.
// For http/ alone: it speaks Beast. On the service's thread.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/basic_stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/serializer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "twinkle/server/bodies/sending.h"
#include "twinkle/server/connections/connections.h"
#include "twinkle/server/http/server.h"
#include "twinkle/server/worker.h"

namespace twinkle::server {

// TCP, or a Unix socket.
using SocketStream = boost::beast::basic_stream<boost::asio::generic::stream_protocol>;

// How a response is written, as its request asks.
struct Framing {
  bool keep_alive = false;
  bool is_head = false;     // HEAD: without the body
  bool has_chunks = false;  // a stream may be sent in them: HTTP/1.1
};

class Connection {
 public:
  // The part of the server that its connections use; the server outlives what they run.
  struct Shared {
    const HttpOptions& options;
    const std::weak_ptr<boost::asio::io_context> context;
    boost::asio::steady_timer room;  // cancelled where there may be a place for another connection
    const std::shared_ptr<Sending> sending = std::make_shared<Sending>(options.max_sending_bytes);
    Connections places = {};
    Worker reader = {};  // reads sources
  };

  // `beyond`: as Head's. `number`: that of Connections.
  Connection(Shared& shared, SocketStream stream, std::string peer, int64_t beyond, int64_t number,
             size_t max_buffered)
      : stream(std::move(stream)),
        peer(std::move(peer)),
        beyond(beyond),
        number(number),
        buffer(max_buffered),
        shared_(shared) {}

  SocketStream stream;
  const std::string peer;
  const int64_t beyond, number;
  boost::beast::flat_buffer buffer;   // read, and not parsed
  bool waits = false;                 // for its next request
  std::function<void()> let_go = {};  // answers the request that is held, if one is
  int64_t num_sent = 0;               // bytes that its peer has taken
  std::string cut = {};               // why the last response was not sent whole, if it broke off

  // From here on it may have to give way.
  void idles();
  void works() { shared_.places.works(number); }
  bool gives_way() const { return shared_.places.gives_way(number); }
  // The time that its peer has: none where it gives way already.
  std::chrono::milliseconds time_of(std::chrono::milliseconds most) const;

  // False where the connection ends with it.
  boost::asio::awaitable<bool> write(Response response, const Framing& framing);
  boost::asio::awaitable<bool> write_continue();

 private:
  struct Pace;
  struct Pieces;
  struct Wake;

  template <class Body>
  boost::asio::awaitable<bool> send(boost::beast::http::response_serializer<Body>& serializer,
                                    Pace& pace);
  boost::asio::awaitable<bool> write_pieces(const Response& response, const Framing& framing);
  boost::asio::awaitable<bool> send_piece(Pieces& pieces, std::string& piece, bool is_last);
  boost::asio::awaitable<bool> send_stream(Pieces& pieces, Stream& body);
  boost::asio::awaitable<bool> send_source(Pieces& pieces,
                                           std::shared_ptr<const BodySource> source);
  void watch(const std::shared_ptr<Wake>& wake);

  Shared& shared_;
};

}  // namespace twinkle::server
