#include "twinkle/server/worker.h"

#include <algorithm>
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

void Worker::run(std::function<void()> job, const std::string& owner) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(owners_, owner, &Owner::name);
    if (found != owners_.end()) {
      found->jobs.push_back(std::move(job));
    } else {
      std::list<Owner> added;  // whole, or there is no memory
      added.emplace_back().name = owner;
      added.back().jobs.push_back(std::move(job));
      owners_.splice(owners_.end(), added);
    }
  }
  changed_.notify_one();
}

void Worker::run(std::function<void()> job, Loop& loop,
                 std::function<void(const std::exception_ptr& error)> then,
                 const std::string& owner) {
  run(
      [job = std::move(job), &loop, then = std::move(then)]() mutable {
        std::exception_ptr error;
        try {
          job();
        } catch (...) {
          error = std::current_exception();
        }
        loop.post([then = std::move(then), error] { then(error); });
      },
      owner);
}

void Worker::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !owners_.empty(); });
    if (ends_) return;
    Owner& next = owners_.front();
    auto job = std::move(next.jobs.front());
    next.jobs.pop_front();
    if (next.jobs.empty())
      owners_.pop_front();
    else
      owners_.splice(owners_.end(), owners_, owners_.begin());  // takes no memory
    lock.unlock();
    job();
    job = nullptr;  // what it holds ends before the next one begins
    lock.lock();
  }
}

}  // namespace twinkle::server
