// A response's body that is written while it is sent, as tokens that are sampled or lines that are
// found: a pipe from a handler (StreamWriter) to a connection (Stream). Knows no socket. Both ends
// are used on the service's thread alone.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace twinkle::server {

namespace detail {

struct Pipe {
  std::string unsent = {};  // written, and not taken
  bool is_ended = false, is_cut = false, is_gone = false;
  std::function<void()> changed = {};    // the reader's, called on each write and on the end
  std::function<void()> when_gone = {};  // the writer's
};

}  // namespace detail

// The end that a Response holds. If it is dropped, the writer's next write() returns false.
class Stream {
 public:
  explicit Stream(std::shared_ptr<detail::Pipe> pipe) : pipe_(std::move(pipe)) {}
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // All that was written and not taken.
  std::string take() { return std::exchange(pipe_->unsent, {}); }
  int64_t num_unsent() const { return std::ssize(pipe_->unsent); }
  bool is_ended() const { return pipe_->is_ended; }
  bool is_cut() const { return pipe_->is_cut; }
  // `run` is called whenever there is more to take, or the end has come.
  void when_changed(std::function<void()> run) { pipe_->changed = std::move(run); }
  // The client takes no more. Tells the writer, unless that has ended.
  void hang_up();

 private:
  const std::shared_ptr<detail::Pipe> pipe_;
};

// The handler's end. If it is dropped before end(), the response is cut.
class StreamWriter {
 public:
  StreamWriter() : pipe_(std::make_shared<detail::Pipe>()) {}
  ~StreamWriter();
  StreamWriter(StreamWriter&&) noexcept = default;
  StreamWriter(const StreamWriter&) = delete;
  StreamWriter& operator=(const StreamWriter&) = delete;

  // For Response::stream, once.
  std::shared_ptr<Stream> stream() const { return std::make_shared<Stream>(pipe_); }

  // Sends these bytes behind those before, at once where the client takes them; else they wait in
  // memory, and count in HttpOptions::max_sending_bytes. False: the client takes no more.
  bool write(std::string_view piece);
  // The response is whole.
  void end();
  // The response breaks off behind what was written: its client sees that it is not whole
  // (HTTP/1.0 excepted, which can't tell).
  void cut();
  // `run` is called once if the client hangs up, or is too slow, before end() or cut(); at once if
  // it has.
  void when_gone(std::function<void()> run);

 private:
  void finish(bool& how);

  std::shared_ptr<detail::Pipe> pipe_;  // null: moved from
};

}  // namespace twinkle::server
