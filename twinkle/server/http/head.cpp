#include "twinkle/server/http/head.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <iterator>
#include <string_view>

namespace twinkle::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr size_t kReadBytes = 4096;  // at once; most heads are shorter

// In what is left of a head, of which the parser takes no line before it sees what follows.
bool is_folded(std::string_view text) {
  if (text.starts_with("\r\n")) return false;
  text = text.substr(0, text.find("\r\n\r\n"));
  return text.find("\r\n ") != text.npos || text.find("\r\n\t") != text.npos;
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

asio::ip::tcp::endpoint tcp_of(const asio::generic::stream_protocol::endpoint& endpoint) {
  asio::ip::tcp::endpoint out;
  out.resize(endpoint.size());
  std::memcpy(out.data(), endpoint.data(), endpoint.size());
  return out;
}

std::string peer_of(const asio::generic::stream_protocol::socket& socket) {
  error_code error;
  const auto remote = socket.remote_endpoint(error);
  if (error) return "";
  if (remote.protocol().family() == AF_UNIX) return "unix";
  return tcp_of(remote).address().to_string();
}

asio::awaitable<error_code> read_head(SocketStream& stream, beast::flat_buffer& buffer,
                                      Parser& parser) {
  for (;;) {
    if (buffer.size() > 0) {
      const auto bytes = buffer.cdata();
      if (is_folded({static_cast<const char*>(bytes.data()), bytes.size()}))
        co_return make_error_code(http::error::bad_obs_fold);
      error_code error;
      buffer.consume(parser.put(bytes, error));
      if (parser.is_header_done()) co_return error_code();
      if (error && error != http::error::need_more) co_return error;
    }
    error_code error;
    const size_t room = std::min(kReadBytes, buffer.max_size() - buffer.size());
    if (room == 0) co_return make_error_code(http::error::header_limit);
    const size_t came = co_await stream.async_read_some(
        buffer.prepare(room), asio::redirect_error(asio::use_awaitable, error));
    buffer.commit(came);
    if (error) co_return error;
  }
}

std::string ambiguity_of(const Parser& parser) {
  const auto& message = parser.get();
  const auto [first, last] = message.equal_range(http::field::transfer_encoding);
  if (first != last && (std::next(first) != last || !beast::iequals(first->value(), "chunked")))
    return "of transfer encodings only chunked is taken";
  if (message.count(http::field::host) > 1) return "it has more than one Host";
  const auto [length, end] = message.equal_range(http::field::content_length);
  if (length != end && (std::next(length) != end || !is_number(length->value())))
    return "Content-Length must be one number, and come once";
  return "";
}

bool has_whole_body(const Parser& parser, const beast::flat_buffer& buffer) {
  return parser.is_done() || (parser.content_length() && *parser.content_length() <= buffer.size());
}

Head head_of(const Parser& parser, const std::string& peer) {
  const auto& message = parser.get();
  Head head{.method = std::string(message.method_string()), .peer = peer};
  const std::string target(message.target());
  const size_t mark = target.find('?');
  head.path = target.substr(0, mark);
  if (mark != std::string::npos) head.query = target.substr(mark + 1);
  for (const auto& field : message)
    head.headers[lower(field.name_string())] = std::string(field.value());
  if (const auto length = parser.content_length())
    head.content_length = static_cast<int64_t>(*length);
  return head;
}

}  // namespace twinkle::server
