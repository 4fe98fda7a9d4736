#include "twinkle/server/http/receive.h"

#include <algorithm>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <string>
#include <utility>

#include "twinkle/server/bodies/zstd.h"
#include "twinkle/server/http/answer.h"

namespace twinkle::server {

namespace http = boost::beast::http;
using boost::asio::awaitable;
using std::chrono::steady_clock;

namespace {

constexpr int64_t kReadBytes = int64_t{64} << 10;  // that one read may add
// Whom room was made for gets so much, that bodies which wait come to their end one after another.
constexpr int64_t kAfterWaiting = int64_t{4} << 20;
// Of a chunk's head, with its extensions, and of the trailers: what is between chunks is not
// counted as a body.
constexpr size_t kMostFraming = size_t{8} << 10;
constexpr int64_t kMiB = int64_t{1} << 20;

Response gave_way() {
  Response out = refusal(
      503, "all connections are open, and this one gave its place to a new one; come again");
  out.headers.emplace_back("Retry-After", "1");
  return out;
}

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

awaitable<std::optional<Response>> Receiver::read(Connection& c, Parser& parser,
                                                  const Admission& admission) {
  SocketStream& stream = c.stream;
  auto& buffer = c.buffer;
  const int64_t most = admission.max_body_bytes;
  const auto too_long = [&] {
    return refusal(
        413, "the body is longer than " + std::to_string(most) + " bytes" + admission.why_most);
  };
  const auto limit = static_cast<uint64_t>(most);
  bool is_too_long = parser.content_length().value_or(0) > limit;
  uint64_t left = limit;  // for chunks, whose lengths come with them
  auto on_chunk = [&](uint64_t bytes, const auto&, auto&) {
    is_too_long = is_too_long || bytes > left;
    left -= std::min(bytes, left);
  };
  parser.on_chunk_header(on_chunk);
  if (parser.chunked()) buffer.max_size(std::max(buffer.size(), kMostFraming));
  const auto told = static_cast<int64_t>(std::min(limit, parser.content_length().value_or(limit)));
  auto end = steady_clock::now() + options_.body_time;  // if no more came
  HeldRoom* const held = admission.held.get();
  std::shared_ptr<Search> searches;  // what is too long
  std::string& body = parser.get().body();
  if (!is_too_long) body.reserve(parser.content_length().value_or(0));
  for (int64_t came = 0;;) {
    if (is_too_long) {
      if (!searches)
        searches = std::make_shared<Search>(admission.finder,
                                            lower(parser.get()[http::field::content_encoding]),
                                            admission.most_searched_bytes);
      const auto begun = steady_clock::now();
      stream.expires_never();
      if (!co_await search(searches, std::exchange(body, {}))) co_return too_long();
      end += steady_clock::now() - begun;
      if (held) held->shrink(searches->num_bytes());
    }
    if (parser.is_done()) break;
    const int64_t kept = std::ssize(body) + (searches ? searches->num_bytes() : 0);
    const int64_t most_kept = searches ? kept + kReadBytes : told;
    if (held && !held->grow(std::min(most_kept, kept + kReadBytes))) {
      const auto begun = steady_clock::now();
      stream.expires_never();
      if (auto refused = co_await room(*held, std::min(most_kept, kept + kAfterWaiting)))
        co_return refused;
      end += steady_clock::now() - begun;
    }
    stream.expires_at(std::min(steady_clock::now() + options_.patience,
                               end + std::chrono::milliseconds(1000 * came / kMiB)));
    boost::system::error_code error;
    came -= std::ssize(body);
    const auto rest = parser.content_length_remaining();
    if (!rest || *rest > buffer.size()) c.idles();
    co_await http::async_read_some(stream, buffer, parser,
                                   boost::asio::redirect_error(boost::asio::use_awaitable, error));
    came += std::ssize(body);
    c.works();
    if (c.gives_way()) co_return gave_way();
    if (error == http::error::buffer_overflow)
      co_return refusal(431,
                        "the head of a chunk, or the trailers behind the last, are longer than " +
                            std::to_string(kMostFraming) + " bytes; leave chunk extensions out");
    if (error) co_return refusal(422, "the body is not HTTP as it should be: " + error.message());
  }
  if (is_too_long) co_return too_long();
  co_return std::nullopt;
}

// What came is there until it is decoded, hence room for both.
awaitable<std::optional<Response>> Receiver::decode(Request& request, const Admission& admission) {
  const int64_t most = admission.max_body_bytes;
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
      if (bytes < left) continue;
      const auto searches =
          std::make_shared<Search>(admission.finder, encoding, admission.most_searched_bytes);
      co_await search(searches, std::move(request.body));
      co_return refused(out.wrong);
    }
  }
  if (request.held) request.held->shrink(std::ssize(request.body));
  co_return std::nullopt;
}

// A decoder may make much of little, which must not hold up the thread that serves.
awaitable<bool> Receiver::search(std::shared_ptr<Search> search, std::string piece) {
  Answer<bool> answer(context_.lock(), false);
  decoder_.run([search = std::move(search), piece = std::move(piece), told = answer.setter()] {
    told(search->read(piece));
  });
  co_return co_await answer.wait();
}

awaitable<std::optional<Response>> Receiver::room(HeldRoom& held, int64_t bytes) {
  Answer<std::optional<Response>> answer(context_.lock(), refusal(500, kDropped));
  held.wait(bytes, answer.setter());
  co_return co_await answer.wait();
}

}  // namespace twinkle::server
