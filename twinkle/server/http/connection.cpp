#include "twinkle/server/http/connection.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http.hpp>
#include <exception>
#include <span>
#include <utility>

#include "twinkle/base/fault/fault.h"
#include "twinkle/server/connections/socket.h"
#include "twinkle/server/http/answer.h"
#include "twinkle/server/http/receive.h"

namespace twinkle::server {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::use_awaitable;
using boost::system::error_code;
using std::chrono::steady_clock;

namespace {

// The time in which the request of a connection that is kept for probes must come.
constexpr std::chrono::seconds kProbe{2};
// Between looks at whether a client that sends its next request has hung up behind it.
constexpr std::chrono::milliseconds kLook{500};
constexpr int64_t kPieceBytes = int64_t{256} << 10;  // read at once from a source

template <class Message>
void set_head(Message& message, const Response& response, bool keep_alive) {
  message.result(static_cast<unsigned>(response.status));
  message.version(11);
  message.set(http::field::content_type, response.content_type);
  for (const auto& [name, value] : response.headers) message.set(name, value);
  message.keep_alive(keep_alive);
}

struct Read {
  std::string bytes, wrong;
};

Read read_piece(const BodySource& source, int64_t offset, int64_t bytes) {
  try {
    Read out{.bytes = std::string(static_cast<size_t>(bytes), '\0')};
    source.read_at(offset, std::as_writable_bytes(std::span(out.bytes)));
    return out;
  } catch (const std::exception& e) {
    return {.wrong = e.what()};
  }
}

}  // namespace

// The time that a response has, which grows with what its peer has taken.
struct Connection::Pace {
  steady_clock::time_point end;
  size_t taken = 0;  // bytes

  steady_clock::time_point deadline() const {
    return end + std::chrono::milliseconds(1000 * taken >> 20);
  }
};

struct Connection::Pieces {
  http::response<http::buffer_body> message = {};
  http::response_serializer<http::buffer_body> serializer{message};
  Pace pace;
};

// A coroutine that waits for more of a stream. Only the coroutine owns it.
struct Connection::Wake {
  Wake(const asio::any_io_executor& executor, Connection& c)
      : timer(executor), held(c.shared_.sending, [&c] { c.stream.close(); }) {}

  asio::steady_timer timer;
  Sending::One held;
  int64_t num_sending = 0;  // bytes that are no more in the stream
  bool is_gone = false;     // the client
  bool looks = false;       // ... sent more than this request, so its end cannot be waited for
};

void Connection::idles() {
  shared_.places.idles(number);
  shared_.room.cancel_one();
}

std::chrono::milliseconds Connection::time_of(std::chrono::milliseconds most) const {
  if (gives_way()) return std::chrono::milliseconds(0);
  return beyond > 0 ? std::min<std::chrono::milliseconds>(most, kProbe) : most;
}

awaitable<bool> Connection::write(Response response, const Framing& framing) {
  cut.clear();
  if (response.stream || response.source) co_return co_await write_pieces(response, framing);
  const bool stays = framing.keep_alive && !response.close;
  const std::string& text = response.text();
  http::response<http::span_body<const char>> message;
  set_head(message, response, stays);
  message.body() = {text.data(), text.size()};
  message.prepare_payload();
  if (framing.is_head) message.body() = {};  // its length stays
  http::response_serializer<http::span_body<const char>> serializer(message);
  const Sending::One one(shared_.sending, text, [this] { stream.close(); });
  Pace pace{steady_clock::now() + shared_.options.body_time};
  fault("before acknowledgement");
  if (!co_await send(serializer, pace)) co_return false;
  fault("after acknowledgement");
  co_return stays;
}

awaitable<bool> Connection::write_continue() {
  http::response<http::empty_body> go_on{http::status::continue_, 11};
  http::response_serializer<http::empty_body> serializer(go_on);
  Pace pace{steady_clock::now() + shared_.options.body_time};
  co_return co_await send(serializer, pace);
}

// False where its peer did not take all of it. While the peer takes nothing, it may have to give
// way.
template <class Body>
awaitable<bool> Connection::send(http::response_serializer<Body>& serializer, Pace& pace) {
  error_code error;
  while (!serializer.is_done() && !error) {
    if (!takes_more(stream.socket().native_handle())) idles();
    stream.expires_at(
        std::min(steady_clock::now() + time_of(shared_.options.patience), pace.deadline()));
    const size_t bytes = co_await http::async_write_some(
        stream, serializer, asio::redirect_error(use_awaitable, error));
    pace.taken += bytes;
    num_sent += static_cast<int64_t>(bytes);
    works();
  }
  co_return !error || error == http::error::need_buffer;  // that of the next piece
}

awaitable<bool> Connection::write_pieces(const Response& response, const Framing& framing) {
  Pieces pieces{.pace = {steady_clock::now() + shared_.options.body_time}};
  const bool has_end = response.source || framing.has_chunks;
  const bool stays = framing.keep_alive && !response.close && has_end;
  set_head(pieces.message, response, stays);
  if (response.source)
    pieces.message.content_length(static_cast<uint64_t>(response.source->size()));
  else if (has_end)
    pieces.message.chunked(true);
  pieces.serializer.split(true);  // the head is not kept until there is a piece
  bool is_whole = co_await send(pieces.serializer, pieces.pace);
  if (!is_whole)
    cut = "client gone";
  else if (response.source && !framing.is_head)
    is_whole = co_await send_source(pieces, response.source);
  else if (!framing.is_head)
    is_whole = co_await send_stream(pieces, *response.stream);
  if (response.stream) response.stream->hang_up();  // nothing more of it is taken
  co_return is_whole&& stays;
}

awaitable<bool> Connection::send_piece(Pieces& pieces, std::string& piece, bool is_last) {
  auto& body = pieces.message.body();
  body.data = piece.empty() ? nullptr : piece.data();
  body.size = piece.size();
  body.more = !is_last;
  const bool is_taken = co_await send(pieces.serializer, pieces.pace);
  if (!is_taken) cut = "client gone";
  co_return is_taken;
}

awaitable<bool> Connection::send_stream(Pieces& pieces, Stream& body) {
  const auto wake = std::make_shared<Wake>(stream.get_executor(), *this);
  const auto count = [&body](Wake& w) { w.held.holds(w.num_sending + body.num_unsent()); };
  body.when_changed([count, weak = std::weak_ptr(wake)] {
    const auto w = weak.lock();
    if (!w) return;
    count(*w);
    w->timer.cancel();
  });
  watch(wake);
  for (bool ends = false; !ends && cut.empty();) {
    std::string piece = body.take();
    ends = body.is_ended();
    if (wake->is_gone || (wake->looks && has_hung_up(stream.socket().native_handle()))) {
      cut = "client gone";
    } else if (!piece.empty() || ends) {
      wake->num_sending = std::ssize(piece);
      count(*wake);
      co_await send_piece(pieces, piece, ends);
      wake->num_sending = 0;
      count(*wake);
    } else if (body.is_cut()) {
      cut = "cut";
    } else {
      const auto begun = steady_clock::now();
      wake->timer.expires_at(wake->looks ? begun + kLook : steady_clock::time_point::max());
      error_code cancelled;
      co_await wake->timer.async_wait(asio::redirect_error(use_awaitable, cancelled));
      pieces.pace.end += steady_clock::now() - begun;
    }
  }
  error_code ignored;
  stream.socket().cancel(ignored);  // watch()
  co_return cut.empty();
}

// Until the client hangs up, or sends more.
void Connection::watch(const std::shared_ptr<Wake>& wake) {
  auto& socket = stream.socket();
  socket.async_wait(
      asio::socket_base::wait_read,
      [weak = std::weak_ptr(wake), handle = socket.native_handle()](const error_code& error) {
        const auto w = weak.lock();
        if (error || !w) return;
        (is_gone(handle) ? w->is_gone : w->looks) = true;
        w->timer.cancel();
      });
}

awaitable<bool> Connection::send_source(Pieces& pieces, std::shared_ptr<const BodySource> source) {
  const int64_t size = source->size();
  std::string none;
  if (size == 0) co_return co_await send_piece(pieces, none, true);
  for (int64_t at = 0; at < size && cut.empty();) {
    const int64_t bytes = std::min(kPieceBytes, size - at);
    Answer<Read> answer(shared_.context.lock(), {.wrong = kDropped});
    shared_.reader.run(
        [source, at, bytes, done = answer.setter()] { done(read_piece(*source, at, bytes)); },
        std::to_string(number));
    const auto begun = steady_clock::now();
    Read read = co_await answer.wait();
    pieces.pace.end += steady_clock::now() - begun;
    at += bytes;
    const Sending::One one(shared_.sending, read.bytes, [this] { stream.close(); });
    if (!read.wrong.empty())
      cut = "cut: " + read.wrong;
    else
      co_await send_piece(pieces, read.bytes, at == size);
  }
  co_return cut.empty();
}

}  // namespace twinkle::server
