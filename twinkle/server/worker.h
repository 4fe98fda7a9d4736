// One thread that does jobs in the order they were given: what takes long, or waits for a disk,
// and must not hold up the thread that gives it.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "twinkle/server/loop.h"

namespace twinkle::server {

class Worker {
 public:
  Worker() : thread_([this] { work(); }) {}
  ~Worker();  // ends the job that it is at; those that have not begun are dropped
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Any thread. A job does not throw.
  void run(std::function<void()> job);
  // Then tells `loop` how it ended, whose thread also ends what `then` holds. Loop outlives it.
  void run(std::function<void()> job, Loop& loop,
           std::function<void(const std::exception_ptr& error)> then);

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool ends_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace twinkle::server
