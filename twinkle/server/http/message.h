// HTTP's requests and responses as the rest of the server sees them: values, without Beast.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/server/bodies/source.h"
#include "twinkle/server/bodies/stream.h"

namespace twinkle::server {

// What is known before the body is read. Names of headers are lower case; of a header that comes
// twice, the last counts.
struct Head {
  std::string id;      // the server's, of the log and of the answer's X-Request-Id
  std::string method;  // "GET"
  std::string path;    // of the target, percent-encoded as it came, without the query
  std::string query;   // behind the '?', or empty
  std::map<std::string, std::string> headers;
  int64_t content_length = -1;  // bytes; -1: not told (a chunked body, or none)
  std::string peer;             // its address, or "unix"
  // When it was read.
  std::chrono::steady_clock::time_point came = std::chrono::steady_clock::now();
  // Its connection is one of those that are kept for probes, beyond so many; 0: it is not.
  int64_t beyond = 0;
  // For a handler that answers later, before it returns: what it gives here is called on the
  // service's thread if the client hangs up before it is answered. May be empty.
  std::function<void(std::function<void()>)> when_gone = {};

  // The header's value, or "" where it is absent.
  std::string header(const std::string& name) const {
    const auto it = headers.find(name);
    return it == headers.end() ? std::string() : it->second;
  }
};

// The status of a request whose client hung up before it was answered; for the log alone.
inline constexpr int kGone = 499;

struct Response {
  int status = 200;
  std::string body = "{}";
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers = {};  // e.g. {"Retry-After", "5"}
  bool close = false;        // the connection, once it is written
  std::string promise = {};  // for the log: whose id the answer tells, or was asked for
  std::string reason = {};   // likewise: what is wrong with the key
  // In place of `body`: bytes that other responses have, too, and nobody changes.
  std::shared_ptr<const std::string> shared = {};
  // Likewise: bytes that are written while they are sent, in chunks (HTTP/1.0: until it closes).
  std::shared_ptr<Stream> stream = {};
  // Likewise: bytes that are read while they are sent, of which the length is told.
  std::shared_ptr<const BodySource> source = {};

  const std::string& text() const { return shared ? *shared : body; }
};

// A text that may quote what was sent, as JSON can have it: if it is no UTF-8, `?` for each byte
// above 127.
std::string readable(std::string text);

// An error's response, with the body {"detail": text} that clients of this protocol expect.
Response refusal(int status, const std::string& text);

// Memory that a body takes, of what all may (body_room.h); given back when it is gone. Who keeps
// what was in the body keeps it, too.
class HeldRoom {
 public:
  using Then = std::function<void(std::optional<Response> refused)>;

  virtual ~HeldRoom() = default;
  // Takes so many bytes in all, where there is room for them now. The service's thread.
  virtual bool grow(int64_t bytes) = 0;
  // Takes them when there is room, or says what to answer where there was none. Where grow() has
  // said no; the service's thread, and nothing else is asked meanwhile.
  virtual void wait(int64_t bytes, Then then) = 0;
  // To fewer than it has. Any thread.
  virtual void shrink(int64_t bytes) = 0;
};

// Looks for something in a body that is not taken, and keeps no more of it than that.
class Finder {
 public:
  virtual ~Finder() = default;
  // The next bytes, decoded. False: it needs no more of them. Any thread.
  virtual bool read(std::string_view more) = 0;
  virtual std::string found() const = 0;  // as a body of that alone; "": it was not there
};

struct Request : Head {
  std::string body;                     // decoded, whatever its Content-Encoding
  std::shared_ptr<HeldRoom> held = {};  // or null
  // Why the body is not taken; its answer. `body` is then what was found in it.
  std::optional<Response> refused = {};
};

// Answers one request. May be called on any thread, once; later calls do nothing. One that is
// dropped uncalled answers 500.
using Reply = std::function<void(Response)>;

// Told what a request's body may be: whether to read it, and how many bytes of it.
struct Admission {
  int64_t max_body_bytes = 0;  // and with what it decodes to
  Response refused = {};       // where max_body_bytes is negative: the answer instead
  std::shared_ptr<HeldRoom> held = {};
  std::string tenant = {}, key_id = {};  // for the log: whose key it has, let in or not
  // Looks through a body that is too long, or does not decode, as far as so many bytes, as they
  // come and decoded: with what it finds the handler is asked before that is told. Null: it is told
  // at once.
  std::shared_ptr<Finder> finder = {};
  int64_t most_searched_bytes = 0;
  std::string why_most = {};  // behind max_body_bytes: ", " and whose limit it is, and the remedy
};
using Admit = std::function<void(Admission)>;

// How a request ended. Empty texts: it was refused before that was known, or has none.
struct Told {
  int status = 0;
  std::chrono::microseconds time{0};  // since the head was read, until the response was written
  int64_t bytes = 0;                  // of the response, with its head, as far as they were taken
  // `reason`: what is wrong with the key, or why a stream or a source was not sent whole.
  std::string tenant = {}, key_id = {}, promise = {}, reason = {};
};

// What the server does with requests. All are called on the server's own thread and must not
// block it; the first two answer when they like.
struct Handler {
  // Before the body is read: a request that waits here costs a connection and no memory.
  std::function<void(const Head&, Admit)> admit;
  std::function<void(Request, Reply)> handle;
  // May be empty. After a response was written, or could not be.
  std::function<void(const Head&, const Told&)> answered = {};
};

}  // namespace twinkle::server
