// One thread that does jobs: what takes long, or waits for a disk, and must not hold up the thread
// that gives it. Those of one owner in the order they were given, owners in turn: however many one
// of them has, another's next waits for one of each.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <string>
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
  void run(std::function<void()> job, const std::string& owner = {});
  // Then tells `loop` how it ended, whose thread also ends what `then` holds. Loop outlives it.
  void run(std::function<void()> job, Loop& loop,
           std::function<void(const std::exception_ptr& error)> then,
           const std::string& owner = {});

 private:
  struct Owner {
    std::string name;
    std::deque<std::function<void()>> jobs;
  };

  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Owner> owners_;  // with jobs that have not begun; the first has its turn
  bool ends_ = false;
  std::thread thread_;  // the last: it uses the others
};

// The thread that serves, and one that waits for the disk in its place.
struct Threads {
  Loop& loop;
  Worker& disk;
};

}  // namespace twinkle::server
