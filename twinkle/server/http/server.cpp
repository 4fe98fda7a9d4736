#include "twinkle/server/http/server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "twinkle/base/error.h"
#include "twinkle/server/connections/socket.h"
#include "twinkle/server/connections/unix_socket.h"
#include "twinkle/server/http/answer.h"
#include "twinkle/server/http/connection.h"
#include "twinkle/server/http/head.h"
#include "twinkle/server/http/receive.h"
#include "twinkle/store/keys/keys.h"

namespace twinkle::server {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using Protocol = asio::generic::stream_protocol;
using Acceptor = asio::basic_socket_acceptor<Protocol>;

namespace {

// In which a peer that was refused may read why, although it still sends.
constexpr std::chrono::seconds kLinger{2};
// Of a connection, beside a head: what follows it.
constexpr size_t kBuffered = 4096;
constexpr const char* kGivesWay =
    "server: all connections are taken, and this one, which only waited, gave its place to "
    "another; come again";
// Between looks at whether a client still waits to be let in.
constexpr std::chrono::milliseconds kLook{500};

Response noted(Response response, const Head& head, Told& told) {
  told.status = response.status;
  told.promise = response.promise;
  told.reason = response.reason;
  response.headers.emplace_back("X-Request-Id", head.id);
  return response;
}

}  // namespace

class HttpServer::Impl {
 public:
  explicit Impl(const HttpOptions& options) : options_(options) {
    require(options.has_port() || !options.unix_socket.empty(), Code::kInvalid,
            "server: host is 'none', and unix_socket is '': give one of them to listen on");
    if (!options.unix_socket.empty()) listen_on_unix_socket(options.unix_socket);
    if (options.has_port()) listen_on_port(options);
    thread_ = std::thread([this] { context_->run(); });
  }

  ~Impl() {
    context_->stop();
    thread_.join();
    error_code ignored;  // an answer that somebody keeps keeps its coroutine
    for (const auto& [number, c] : open_) c->stream.socket().close(ignored);
  }

  void serve(Handler handler) {
    asio::post(*context_, [this, handler = std::move(handler)]() mutable {
      handler_ = std::move(handler);
      for (Acceptor& acceptor : acceptors_)
        asio::co_spawn(*context_, accept(acceptor), asio::detached);
    });
  }

  void post(std::function<void()> run) { asio::post(*context_, std::move(run)); }

  void after(std::chrono::milliseconds time, std::function<void()> run) {
    asio::post(*context_, [this, time, run = std::move(run)]() mutable {
      const auto timer = std::make_shared<asio::steady_timer>(*context_, time);
      timer->async_wait([timer, run = std::move(run)](const error_code& error) {
        if (!error) run();
      });
    });
  }

  void drain(std::chrono::milliseconds limit) {
    asio::post(*context_, [this] {
      draining_ = true;
      error_code ignored;
      for (Acceptor& acceptor : acceptors_) acceptor.close(ignored);
      shared_.room.cancel();
      for (const auto& [number, c] : open_)
        if (c->waits) c->stream.cancel();
    });
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, limit, [&] { return num_connections_ == 0; });
  }

  void set(const HttpOptions& options) {
    asio::post(*context_, [this, options] {
      const int64_t max_header_bytes = options_.max_header_bytes;
      options_ = options;
      options_.max_header_bytes = max_header_bytes;  // buffers are of this size
      shared_.sending->set_max_bytes(options.max_sending_bytes);
      shared_.room.cancel();
    });
  }

  uint16_t port() const { return port_; }
  int64_t num_connections() const { return num_connections_; }

 private:
  void listen_on_port(const HttpOptions& options) {
    error_code error;
    const auto address = asio::ip::make_address(options.address, error);
    require(!error, Code::kInvalid, "server: host ", options.address,
            " is no IP address; use 127.0.0.1 for this machine alone, 0.0.0.0 for every network");
    const tcp::endpoint endpoint(address, options.port);
    Acceptor& acceptor = acceptors_.emplace_back(*context_);
    acceptor.open(endpoint.protocol(), error);
    if (!error) acceptor.set_option(Acceptor::reuse_address(true), error);
    if (!error) acceptor.bind(endpoint, error);
    if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
    require(!error, Code::kInvalid, "server: cannot listen on ", options.address, ":", options.port,
            ": ", error.message(),
            error == asio::error::address_in_use
                ? "; end what listens there, or give another --port"
                : "");
    port_ = tcp_of(acceptor.local_endpoint()).port();
  }

  void listen_on_unix_socket(const std::string& path) {
    error_code error;
    Acceptor& acceptor = acceptors_.emplace_back(*context_);
    acceptor.open(asio::local::stream_protocol(), error);
    if (!error) {
      unix_socket_.emplace(path, acceptor.native_handle());
      acceptor.listen(asio::socket_base::max_listen_connections, error);
    }
    require(!error, Code::kInvalid, "server: cannot listen on unix_socket '", path,
            "': ", error.message());
  }

  // Connections that are not kept for probes.
  int64_t most_others() const {
    return options_.max_connections - connections_for_probes(options_.max_connections);
  }
  // Of those that count, one more would be beyond the most.
  bool is_full() const { return shared_.places.num_that_count() >= most_others(); }
  // Waits for a place for one more, which another may have to give.
  awaitable<void> place() {
    for (;;) {
      if (is_full())
        if (const auto number = shared_.places.give_way()) close(*open_.at(*number));
      if (num_connections_ < options_.max_connections || draining_) co_return;
      error_code cancelled;
      co_await shared_.room.async_wait(asio::redirect_error(use_awaitable, cancelled));
    }
  }

  static void close(Connection& c) {
    c.stream.cancel();
    if (c.let_go) c.let_go();
  }

  awaitable<void> accept(Acceptor& acceptor) {
    for (error_code error; !draining_;) {
      try {
        if (error) {  // no file descriptors are left, for one, or no memory: others may close
          asio::steady_timer pause(*context_, std::chrono::milliseconds(20));
          co_await pause.async_wait(asio::redirect_error(use_awaitable, error));
        }
        error = co_await accept_one(acceptor);
      } catch (const std::bad_alloc&) {  // costs that connection alone
        error = make_error_code(boost::system::errc::not_enough_memory);
      }
    }
  }

  awaitable<error_code> accept_one(Acceptor& acceptor) {
    error_code error;
    Protocol::socket socket(*context_);
    co_await acceptor.async_accept(socket, asio::redirect_error(use_awaitable, error));
    if (!error && !draining_) co_await place();
    if (!error && !draining_) begin_connection(std::move(socket), is_full());
    co_return error;
  }

  // All of it or, where it throws, nothing.
  void begin_connection(Protocol::socket socket, bool is_for_probes) {
    const std::string peer = peer_of(socket);
    const int64_t number = shared_.places.add(peer, is_for_probes);
    ++num_connections_;
    try {
      const auto c =
          std::make_shared<Connection>(shared_, SocketStream(std::move(socket)), peer,
                                       is_for_probes ? most_others() : 0, number, most_buffered_);
      open_[number] = c.get();
      asio::co_spawn(*context_, connection(c),
                     [this, c](const std::exception_ptr&) { end_connection(c->number); });
    } catch (...) {
      end_connection(number);
      throw;
    }
  }

  void end_connection(int64_t number) {
    open_.erase(number);
    shared_.places.remove(number);
    {
      const std::lock_guard lock(mutex_);
      --num_connections_;
    }
    ended_.notify_all();
    shared_.room.cancel_one();
  }

  awaitable<void> connection(std::shared_ptr<Connection> shared) {
    error_code error;
    Connection& c = *shared;
    c.stream.socket().set_option(tcp::no_delay(true), error);  // a Unix socket has none
    try {
      while (!draining_ && !c.gives_way() && co_await serve(c)) {
      }
    } catch (const std::bad_alloc&) {  // costs this connection alone
    }
    c.stream.socket().shutdown(asio::socket_base::shutdown_send, error);
  }

  // One request; false ends the connection.
  awaitable<bool> serve(Connection& c) {
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(options_.max_header_bytes));
    parser.body_limit(boost::none);
    c.buffer.max_size(most_buffered_);
    error_code error;
    c.idles();
    if (c.buffer.size() == 0) co_await first_bytes(c, error);
    if (error) co_return false;
    c.stream.expires_after(c.time_of(options_.patience));
    error = co_await read_head(c.stream, c.buffer, parser);
    c.works();
    if (error) co_return co_await refuse_head(c, error);

    // What follows must not be taken for another request.
    if (const std::string why = ambiguity_of(parser); !why.empty())
      co_return co_await c.write(refusal(422, "not HTTP as it should be: " + why), {});

    Head head = head_of(parser, c.peer);
    head.id = ids_ + std::to_string(next_id_++);
    // A request that came as its place was given away is answered as one that gets none.
    head.beyond = c.gives_way() ? most_others() : c.beyond;
    Told told;
    const int64_t num_sent = c.num_sent;
    const bool stays = co_await exchange(c, parser, head, told);
    if (handler_.answered) {
      told.bytes = c.num_sent - num_sent;
      if (!c.cut.empty()) told.reason = c.cut;
      const auto time = std::chrono::steady_clock::now() - head.came;
      told.time = std::chrono::duration_cast<std::chrono::microseconds>(time);
      handler_.answered(head, told);
    }
    co_return stays;
  }

  // From behind the head to the response, of which it tells.
  awaitable<bool> exchange(Connection& c, Parser& parser, Head& head, Told& told) {
    // HTTP/1.0 knows no chunks: what is before the server may have read another body (RFC
    // 9112, 6.1).
    const bool is_framed = parser.get().version() >= 11 || !parser.chunked();
    Framing framing{.keep_alive = parser.keep_alive() && is_framed && head.beyond == 0,
                    .is_head = head.method == "HEAD",
                    .has_chunks = parser.get().version() >= 11};
    Admission admission = co_await admitted(head, c.stream);
    told.tenant = std::move(admission.tenant);
    told.key_id = std::move(admission.key_id);
    shared_.places.belongs_to(c.number, told.tenant);
    if (admission.max_body_bytes < 0) {
      Response refused = noted(std::move(admission.refused), head, told);
      if (refused.status == kGone) co_return false;
      if (!has_whole_body(parser, c.buffer))
        co_return co_await refuse_unread(c, std::move(refused));
      if (!parser.is_done()) c.buffer.consume(*parser.content_length());
      co_return co_await c.write(std::move(refused), framing);
    }
    if (framing.has_chunks && beast::iequals(parser.get()[http::field::expect], "100-continue") &&
        !co_await c.write_continue())
      co_return false;
    std::optional<Response> refused = co_await receiver_.read(c, parser, admission);
    Request request{head, std::move(parser.get().body()), std::move(admission.held)};
    const bool is_read = !refused;
    if (is_read) {
      c.stream.expires_never();
      refused = co_await receiver_.decode(request, admission);
    }
    if (refused) {
      request = {};  // nothing is kept while its peer reads why
      // What was broken off, or had no room, comes again.
      if (refused->status == (is_read ? 422 : 413) && admission.finder)
        refused = co_await told_why(c, head, admission.finder->found(), std::move(*refused));
      Response why = noted(std::move(*refused), head, told);
      if (!is_read) co_return co_await refuse_unread(c, std::move(why));
      co_return co_await c.write(std::move(why), framing);
    }
    Response response = noted(co_await answered(c, std::move(request)), head, told);
    if (response.status == kGone) co_return false;
    framing.keep_alive = framing.keep_alive && !draining_;
    co_return co_await c.write(std::move(response), framing);
  }

  // What is answered to a request whose body is never taken: the handler is told first, where
  // something was found for it.
  awaitable<Response> told_why(Connection& c, const Head& head, std::string found,
                               Response refused) {
    if (found.empty()) co_return refused;
    Request request{head, std::move(found)};
    request.refused = std::move(refused);
    c.stream.expires_never();
    co_return co_await answered(c, std::move(request));
  }

  // Of a connection that waits for its next request; drain() ends that wait. It keeps little memory
  // meanwhile, whatever it has sent.
  awaitable<void> first_bytes(Connection& c, error_code& error) {
    c.buffer.shrink_to_fit();
    c.waits = true;
    c.stream.expires_after(c.time_of(options_.keep_alive));
    const size_t bytes = co_await c.stream.async_read_some(
        c.buffer.prepare(1024), asio::redirect_error(use_awaitable, error));
    c.buffer.commit(bytes);
    c.waits = false;
  }

  awaitable<Admission> admitted(Head& head, SocketStream& stream) {
    stream.expires_never();  // nothing of it is being read
    const auto when_gone = std::make_shared<std::function<void()>>();
    head.when_gone = [when_gone](std::function<void()> run) { *when_gone = std::move(run); };
    Answer<Admission> answer(context_, Admission{-1, refusal(500, kDropped)});
    try {
      handler_.admit(head, answer.setter());
    } catch (...) {  // the answer that nobody can give any more is the one of a dropped request
    }
    if (*when_gone && !answer.is_set())
      asio::co_spawn(*context_, watch(answer, stream.socket().native_handle(), when_gone),
                     asio::detached);
    Admission admission = co_await answer.wait();
    head.when_gone = {};
    co_return admission;
  }

  // Gives the answer to a client that hangs up meanwhile. Looks, since a socket with a part of the
  // body in it can always be read.
  static awaitable<void> watch(Answer<Admission> answer, int socket,
                               std::shared_ptr<std::function<void()>> when_gone) {
    asio::steady_timer look(co_await asio::this_coro::executor);
    while (!answer.is_set()) {
      look.expires_after(kLook);
      co_await look.async_wait(use_awaitable);
      if (answer.is_set() || !has_hung_up(socket)) continue;
      answer.set({-1, {.status = kGone}});
      (*when_gone)();
    }
  }

  // One that is held, as a poll is, may have to give way; its client asks again after a pause.
  awaitable<Response> answered(Connection& c, Request request) {
    auto& socket = c.stream.socket();
    const auto when_gone = std::make_shared<std::function<void()>>();
    request.when_gone = [when_gone](std::function<void()> run) { *when_gone = std::move(run); };
    Answer<Response> answer(context_, refusal(500, kDropped));
    try {
      handler_.handle(std::move(request), answer.setter());
    } catch (...) {  // as above
    }
    const bool is_held = *when_gone && !answer.is_set();
    if (is_held) {
      const auto end = [answer, when_gone](Response with) {
        if (answer.is_set()) return;
        answer.set(std::move(with));
        (*when_gone)();
      };
      socket.async_wait(asio::socket_base::wait_read,
                        [end, handle = socket.native_handle()](const error_code& error) {
                          if (!error && is_gone(handle)) end({.status = kGone});
                        });
      c.let_go = [end] {
        Response later = refusal(429, kGivesWay);
        later.close = true;
        end(std::move(later));
      };
      c.idles();
    }
    Response response = co_await answer.wait();
    if (is_held) {
      c.works();
      c.let_go = {};
      error_code ignored;
      socket.cancel(ignored);
    }
    co_return response;
  }

  awaitable<bool> refuse_head(Connection& c, const error_code& error) {
    if (error == http::error::end_of_stream || error == asio::error::eof ||
        error == asio::error::connection_reset || error == asio::error::operation_aborted)
      co_return false;
    if (error == beast::error::timeout) co_return false;
    const int status = error == http::error::header_limit ? 431 : 422;
    co_return co_await c.write(refusal(status, "not HTTP as it should be: " + error.message()), {});
  }

  // Of a request whose body was not read to its end. A connection that is closed with bytes unread
  // is reset, and takes the response away from its peer; so they are read, and dropped.
  awaitable<bool> refuse_unread(Connection& c, Response response) {
    error_code error;
    co_await c.write(std::move(response), {});
    c.stream.socket().shutdown(asio::socket_base::shutdown_send, error);
    c.idles();
    std::vector<char> dropped(64 << 10);
    for (c.stream.expires_after(kLinger); !error && !c.gives_way();)
      co_await c.stream.async_read_some(asio::buffer(dropped),
                                        asio::redirect_error(use_awaitable, error));
    co_return false;
  }

  HttpOptions options_;  // context's thread
  const size_t most_buffered_ = static_cast<size_t>(options_.max_header_bytes) + kBuffered;
  const std::string ids_ = store::random_hex(4) + "-";  // of this start's requests
  int64_t next_id_ = 1;                                 // context's thread, as ...
  Handler handler_;                                     // ... this
  const std::shared_ptr<asio::io_context> context_ = std::make_shared<asio::io_context>(1);
  const asio::executor_work_guard<asio::io_context::executor_type> stays_ =
      asio::make_work_guard(*context_);  // also while nothing is awaited
  std::list<Acceptor> acceptors_;
  std::optional<UnixSocketFile> unix_socket_;
  Connection::Shared shared_{
      options_, context_,
      asio::steady_timer(*context_, asio::steady_timer::time_point::max())};  // context's thread
  Receiver receiver_{options_, context_};
  uint16_t port_ = 0;
  bool draining_ = false;                // context's thread, as ...
  std::map<int64_t, Connection*> open_;  // ... this: by their numbers in shared_.places
  std::atomic<int64_t> num_connections_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::thread thread_;
};

HttpServer::HttpServer(const HttpOptions& options) : impl_(std::make_unique<Impl>(options)) {}
HttpServer::~HttpServer() = default;
void HttpServer::serve(Handler handler) { impl_->serve(std::move(handler)); }
void HttpServer::post(std::function<void()> run) { impl_->post(std::move(run)); }
void HttpServer::after(std::chrono::milliseconds time, std::function<void()> run) {
  impl_->after(time, std::move(run));
}
std::chrono::milliseconds HttpServer::now() const {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now().time_since_epoch());
}
uint16_t HttpServer::port() const { return impl_->port(); }
int64_t HttpServer::num_connections() const { return impl_->num_connections(); }
void HttpServer::set(const HttpOptions& options) { impl_->set(options); }
void HttpServer::drain(std::chrono::milliseconds limit) { impl_->drain(limit); }

}  // namespace twinkle::server
