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
  ~Worker() { close(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Ends the job that it is at; those that have not begun, and that come later, are dropped. Not on
  // its own thread.
  void close();

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

// The thread that serves, and the one that waits for the disk in its place.
struct Threads {
  Loop& loop;
  Worker& disk;
};

}  // namespace twinkle::server
