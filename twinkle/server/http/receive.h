// Reads the body of a request from its connection, as there is room for it and no slower than it
// may come, and decodes it. For server.cpp alone: it speaks Beast. On the service's thread.
#pragma once
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/beast/http.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "twinkle/server/bodies/zstd.h"
#include "twinkle/server/http/connection.h"
#include "twinkle/server/http/server.h"
#include "twinkle/server/worker.h"

namespace twinkle::server {

// A string for which no memory is taken because a head announces a length: that may be any number,
// and Beast's own reader ends the process where there is not so much. Receiver::read() takes it for
// what may come.
struct TextBody : boost::beast::http::string_body {
  class reader : public boost::beast::http::string_body::reader {
   public:
    using boost::beast::http::string_body::reader::reader;
    void init(const boost::optional<std::uint64_t>&, boost::system::error_code& error) {
      boost::beast::http::string_body::reader::init(boost::none, error);
    }
  };
};
using Parser = boost::beast::http::request_parser<TextBody>;

// What the coroutine that waits is told where nobody can give the answer any more.
inline const char* const kDropped = "the server dropped this request";

// Of names of headers and encodings, which are the same in any case.
std::string lower(std::string_view text);

class Receiver {
 public:
  Receiver(const HttpOptions& options, const std::shared_ptr<boost::asio::io_context>& context)
      : options_(options), context_(context) {}

  // Into the parser's body; of one that is too long, nothing: it is searched as it comes. The
  // refusal if it is longer than it may be (413), there was no room for it (503, 429), it is not
  // HTTP as it should be (422), or its connection gives way (503); a connection that is too slow is
  // closed.
  boost::asio::awaitable<std::optional<Response>> read(Connection& c, Parser& parser,
                                                       const Admission& admission);

  // In place, by its Content-Encoding. The refusal if it cannot be decoded, with what it decodes to
  // is longer than it may be (422), when it has been searched, or there was no room for that (503,
  // 429).
  boost::asio::awaitable<std::optional<Response>> decode(Request& request,
                                                         const Admission& admission);

 private:
  boost::asio::awaitable<std::optional<Response>> room(HeldRoom& held, int64_t bytes);
  boost::asio::awaitable<bool> search(std::shared_ptr<Search> search, std::string piece);

  const HttpOptions& options_;
  const std::weak_ptr<boost::asio::io_context> context_;
  Worker decoder_;
};

}  // namespace twinkle::server
