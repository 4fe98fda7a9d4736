#include "twinkle/server/worker.h"

#include <utility>

namespace twinkle::server {

void Worker::close() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Worker::run(std::function<void()> job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_.notify_one();
}

void Worker::run(std::function<void()> job, Loop& loop,
                 std::function<void(const std::exception_ptr& error)> then) {
  run([job = std::move(job), &loop, then = std::move(then)]() mutable {
    std::exception_ptr error;
    try {
      job();
    } catch (...) {
      error = std::current_exception();
    }
    loop.post([then = std::move(then), error] { then(error); });
  });
}

void Worker::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (ends_) return;
    auto job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it holds ends before the next one begins
    lock.lock();
  }
}

}  // namespace twinkle::server
