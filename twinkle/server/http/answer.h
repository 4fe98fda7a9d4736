// What a coroutine of the HTTP server waits for.
#pragma once
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace twinkle::server {

// A value that another thread sets once, for a coroutine of `context` to wait for. If all that
// could set it are gone, it is `otherwise`.
template <class T>
class Answer {
 public:
  Answer(const std::shared_ptr<boost::asio::io_context>& context, T otherwise)
      : context_(context), state_(std::make_shared<State>(*context, std::move(otherwise))) {}

  std::function<void(T)> setter() {
    const auto shared = std::make_shared<Setter>(context_.lock(), state_);
    return [shared](T value) { shared->set(std::move(value)); };
  }

  bool is_set() const { return state_->is_set; }
  // As a setter, which it does not count as one of. The context's thread.
  void set(T value) const {
    if (state_->put(std::move(value))) state_->timer.cancel();
  }

  boost::asio::awaitable<T> wait() {
    boost::system::error_code cancelled;
    if (!state_->is_set)
      co_await state_->timer.async_wait(
          boost::asio::redirect_error(boost::asio::use_awaitable, cancelled));
    const std::lock_guard lock(state_->mutex);
    co_return std::move(state_->value);
  }

 private:
  struct State {
    State(boost::asio::io_context& context, T otherwise)
        : timer(context, boost::asio::steady_timer::time_point::max()),
          value(std::move(otherwise)) {}
    // False: it was set before.
    bool put(std::optional<T> new_value) {
      const std::lock_guard lock(mutex);
      if (is_set) return false;
      if (new_value) value = std::move(*new_value);
      return is_set = true;
    }
    boost::asio::steady_timer timer;  // touched by the context's thread alone
    std::mutex mutex;
    T value;
    std::atomic<bool> is_set = false;
  };

  // Keeps the context, which a coroutine that waits must not do: the context owns it.
  struct Setter {
    Setter(std::shared_ptr<boost::asio::io_context> context, std::shared_ptr<State> state)
        : context(std::move(context)), state(std::move(state)) {}
    ~Setter() { set(std::nullopt); }

    void set(std::optional<T> value) {
      if (!state->put(std::move(value))) return;
      boost::asio::post(*context, [state = state] { state->timer.cancel(); });
    }

    const std::shared_ptr<boost::asio::io_context> context;
    const std::shared_ptr<State> state;
  };

  std::weak_ptr<boost::asio::io_context> context_;
  std::shared_ptr<State> state_;
};

}  // namespace twinkle::server
