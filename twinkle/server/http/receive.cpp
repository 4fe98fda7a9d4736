#include "twinkle/server/http/receive.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <string>
#include <utility>

#include "twinkle/server/bodies/zstd.h"
#include "twinkle/server/http/answer.h"

namespace twinkle::server {

namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::asio::awaitable;
using std::chrono::steady_clock;

namespace {

constexpr int64_t kReadBytes = int64_t{64} << 10;  // that one read may add
// Whom room was made for gets so much, that bodies which wait come to their end one after another.
constexpr int64_t kAfterWaiting = int64_t{4} << 20;
constexpr int64_t kMiB = int64_t{1} << 20;

struct Decoded {
  std::string body, wrong;
};

}  // namespace

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c += 'a' - 'A';
  return out;
}

awaitable<std::optional<Response>> Receiver::read(beast::tcp_stream& stream,
                                                  beast::flat_buffer& buffer, Parser& parser,
                                                  const Admission& admission) {
  const int64_t most = admission.max_body_bytes;
  const auto too_long = [&] {
    return refusal(413,
                   "the body is longer than " + std::to_string(most) +
                       " bytes, the most of this path (max_body_bytes, and less of JSON); send "
                       "fewer or shorter examples at once, or have the operator raise it");
  };
  const auto limit = static_cast<uint64_t>(most);
  bool is_too_long = parser.content_length().value_or(0) > limit;
  uint64_t left = limit;  // for chunks, whose lengths come with them
  auto on_chunk = [&](uint64_t bytes, const auto&, auto&) {
    is_too_long = is_too_long || bytes > left;
    left -= std::min(bytes, left);
  };
  parser.on_chunk_header(on_chunk);
  const auto told = is_too_long ? admission.beginning_bytes
                                : static_cast<int64_t>(parser.content_length().value_or(limit));
  auto end = steady_clock::now() + options_.body_time;  // if no more came
  while (!parser.is_done() &&
         (!is_too_long || std::ssize(parser.get().body()) < admission.beginning_bytes)) {
    const int64_t came = std::ssize(parser.get().body());
    HeldRoom* const held = admission.held.get();
    if (held && !held->grow(std::min(told, came + kReadBytes))) {
      const auto waits = steady_clock::now();
      stream.expires_never();
      if (auto refused = co_await room(*held, std::min(told, came + kAfterWaiting)))
        co_return refused;
      end += steady_clock::now() - waits;
    }
    stream.expires_at(std::min(steady_clock::now() + options_.patience,
                               end + std::chrono::milliseconds(1000 * came / kMiB)));
    boost::system::error_code error;
    co_await http::async_read_some(stream, buffer, parser,
                                   boost::asio::redirect_error(boost::asio::use_awaitable, error));
    if (error) co_return refusal(422, "the body is not HTTP as it should be: " + error.message());
  }
  if (is_too_long) co_return too_long();
  co_return std::nullopt;
}

// What came is there until it is decoded, hence room for both.
awaitable<std::optional<Response>> Receiver::decode(Request& request, int64_t most) {
  const std::string encoding = lower(request.header("content-encoding"));
  const auto refused = [](const std::string& wrong) {
    return refusal(422, "the body cannot be read: " + wrong);
  };
  if (encoding != "zstd") {
    const std::string wrong = decode_body(request.body, encoding, most);
    if (!wrong.empty()) co_return refused(wrong);
  } else {
    const int64_t came = std::ssize(request.body), left = most - came;
    // As many bytes as the first frame says, and then, where more follow it, all that may be.
    for (int64_t bytes = decoded_bytes(request.body, left);; bytes = left) {
      if (request.held && !request.held->grow(came + bytes))
        if (auto none = co_await room(*request.held, came + bytes)) co_return none;
      Answer<Decoded> answer(context_.lock(), {"", kDropped});
      decoder_.run([body = std::move(request.body), bytes, told = answer.setter()]() mutable {
        std::string said = decode_body(body, "zstd", bytes);
        told({std::move(body), std::move(said)});
      });
      Decoded out = co_await answer.wait();
      request.body = std::move(out.body);
      if (out.wrong.empty()) break;
      if (bytes == left) co_return refused(out.wrong);
    }
  }
  if (request.held) request.held->shrink(std::ssize(request.body));
  co_return std::nullopt;
}

awaitable<std::optional<Response>> Receiver::room(HeldRoom& held, int64_t bytes) {
  Answer<std::optional<Response>> answer(context_.lock(), refusal(500, kDropped));
  held.wait(bytes, answer.setter());
  co_return co_await answer.wait();
}

}  // namespace twinkle::server
