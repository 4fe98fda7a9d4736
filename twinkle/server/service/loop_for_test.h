// The service's thread for tests: what is posted, from any thread, runs when the test says so, and
// time passes when it says so.
#pragma once
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "twinkle/server/loop.h"

namespace twinkle::server {

class LoopForTest : public Loop {
 public:
  void post(std::function<void()> run) override {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(run));
    changed_.notify_all();
  }
  void after(std::chrono::milliseconds time, std::function<void()> run) override {
    waiting_.emplace(now_ + time, std::move(run));
  }
  std::chrono::milliseconds now() const override { return now_; }
  void run() {
    while (const auto next = take()) next();
  }
  // Runs what is posted until `done`; false after a minute.
  template <class Done>
  bool run_until(const Done& done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!done()) {
      run();
      std::unique_lock lock(mutex_);
      if (done()) return true;
      if (!changed_.wait_until(lock, end, [this] { return !posted_.empty(); })) return false;
    }
    return true;
  }
  void pass(std::chrono::milliseconds time) {
    const auto end = now_ + time;
    run();
    while (!waiting_.empty() && waiting_.begin()->first <= end) {
      const auto next = waiting_.extract(waiting_.begin());
      now_ = next.key();
      next.mapped()();
      run();
    }
    now_ = end;
  }

 private:
  std::function<void()> take() {
    const std::lock_guard lock(mutex_);
    if (posted_.empty()) return {};
    auto out = std::move(posted_.front());
    posted_.pop_front();
    return out;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> posted_;
  std::chrono::milliseconds now_{0};
  std::multimap<std::chrono::milliseconds, std::function<void()>> waiting_;
};

}  // namespace twinkle::server
