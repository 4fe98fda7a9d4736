// Coroutines of the service's one thread. A Task runs at once, up to its first wait; who wants its
// result awaits it. All of this is used by that thread alone, so that nothing here locks.
#pragma once
#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace twinkle::server {

namespace detail {

// Goes on with whoever awaits the task that has ended.
struct Final {
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> ended) noexcept {
    const std::coroutine_handle<> next = ended.promise().next;
    return next ? next : std::noop_coroutine();
  }
  void await_resume() const noexcept {}
};

struct PromiseBase {
  std::coroutine_handle<> next;
  std::exception_ptr error;

  std::suspend_never initial_suspend() const noexcept { return {}; }
  Final final_suspend() const noexcept { return {}; }
  void unhandled_exception() { error = std::current_exception(); }
};

template <class T>
struct PromiseOf : PromiseBase {
  std::optional<T> value;
  void return_value(T v) { value.emplace(std::move(v)); }
  T take() { return std::move(*value); }
};

template <>
struct PromiseOf<void> : PromiseBase {
  void return_void() const {}
  void take() const {}
};

}  // namespace detail

// Ends what it waits for when it is dropped.
template <class T = void>
class [[nodiscard]] Task {
 public:
  struct promise_type : detail::PromiseOf<T> {
    Task get_return_object() {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    if (handle_) handle_.destroy();
  }

  bool await_ready() const { return handle_.done(); }
  void await_suspend(std::coroutine_handle<> next) { handle_.promise().next = next; }
  // Error: what the task threw.
  T await_resume() {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return handle_.promise().take();
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

// A value that is set later, once, for one coroutine to await: the seam between calls back and
// coroutines. Copies are of the same value. Setting it goes on with who awaits it before it
// returns; what is set twice, or awaited by nobody any more, is dropped.
template <class T>
class Later {
 public:
  void set(T value) const {
    if (state_->value || state_->error) return;
    state_->value.emplace(std::move(value));
    resume();
  }
  void fail(std::exception_ptr error) const {
    if (state_->value || state_->error) return;
    state_->error = std::move(error);
    resume();
  }

  auto operator co_await() const { return Awaiter(state_); }

 private:
  struct State {
    std::optional<T> value;
    std::exception_ptr error;
    std::coroutine_handle<> waiting;
  };
  // Lives in the frame of who awaits: where that is dropped nobody is resumed.
  struct Awaiter {
    explicit Awaiter(std::shared_ptr<State> state) : state(std::move(state)) {}
    Awaiter(const Awaiter&) = delete;
    Awaiter& operator=(const Awaiter&) = delete;
    ~Awaiter() { state->waiting = {}; }
    bool await_ready() const { return state->value || state->error; }
    void await_suspend(std::coroutine_handle<> next) { state->waiting = next; }
    T await_resume() {
      if (state->error) std::rethrow_exception(state->error);
      return std::move(*state->value);
    }
    const std::shared_ptr<State> state;
  };

  void resume() const {
    if (const auto next = std::exchange(state_->waiting, {})) next.resume();
  }

  std::shared_ptr<State> state_ = std::make_shared<State>();
};

// Tasks that nobody awaits; those that have not ended when it ends are dropped.
class Tasks {
 public:
  Tasks() = default;
  ~Tasks() {
    while (first_) first_->handle().destroy();
  }
  Tasks(const Tasks&) = delete;
  Tasks& operator=(const Tasks&) = delete;

  // The task must not throw.
  void start(Task<> task) { run(*this, std::move(task)); }
  size_t num_running() const { return num_running_; }

 private:
  struct Detached {
    struct promise_type {
      promise_type(Tasks& tasks, const Task<>&) : tasks(tasks), after(tasks.first_) {
        if (after) after->before = this;
        tasks.first_ = this;
        ++tasks.num_running_;
      }
      ~promise_type() {
        if (after) after->before = before;
        (before ? before->after : tasks.first_) = after;
        --tasks.num_running_;
      }
      std::coroutine_handle<> handle() {
        return std::coroutine_handle<promise_type>::from_promise(*this);
      }
      Detached get_return_object() const { return {}; }
      std::suspend_never initial_suspend() const noexcept { return {}; }
      std::suspend_never final_suspend() const noexcept { return {}; }
      void return_void() const {}
      void unhandled_exception() const { std::terminate(); }
      Tasks& tasks;
      promise_type *before = nullptr, *after;  // a list that takes no memory of its own
    };
  };

  static Detached run(Tasks&, Task<> task) { co_await task; }

  Detached::promise_type* first_ = nullptr;
  size_t num_running_ = 0;
};

}  // namespace twinkle::server
