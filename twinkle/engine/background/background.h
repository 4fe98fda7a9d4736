// Work that operations leave for another thread than the dispatcher's, one after the other in the
// order in which they left it: a thread that begins with the first of them. The dispatcher's
// thread, but for `on_end`.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <thread>

#include "twinkle/base/guarded.h"
#include "twinkle/engine/schedule/executor.h"

namespace twinkle::engine {

class Background {
 public:
  struct Job {
    int64_t id = 0;
    Rest rest = {};  // destroyed by who takes the job: it may hold what one thread alone may touch
    Result result = {};
    std::exception_ptr error = {};  // null: it is done
  };
  using Jobs = std::list<Job>;

  // `on_end` is called on the thread of this, after each.
  explicit Background(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
  ~Background() { stop(); }
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // A call that throws, for want of memory or of a thread, has added nothing.
  void add(int64_t id, Rest rest);
  // Those that have ended since the last call, in their order. Takes no memory.
  Jobs take_ended();
  // Waits for the one that runs; those behind it are never called, and not told. Nothing may be
  // added any more.
  void stop();

 private:
  void loop();

  const std::function<void()> on_end_;
  Mutex mutex_;
  std::condition_variable ready_;
  Jobs waiting_ GUARDED_BY(mutex_), ended_ GUARDED_BY(mutex_);
  bool stopped_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace twinkle::engine
