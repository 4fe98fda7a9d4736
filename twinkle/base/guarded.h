// A mutex whose use clang checks: a member marked GUARDED_BY(mutex_) is touched only while a Lock
// of it lives, a function marked REQUIRES(mutex_) is called only then. Other compilers see no
// marks.
#pragma once
#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define TWINKLE_THREAD_MARK(x) __attribute__((x))
#else
#define TWINKLE_THREAD_MARK(x)
#endif

#define GUARDED_BY(mutex) TWINKLE_THREAD_MARK(guarded_by(mutex))
#define REQUIRES(mutex) TWINKLE_THREAD_MARK(requires_capability(mutex))

namespace twinkle {

class TWINKLE_THREAD_MARK(capability("mutex")) Mutex {
 private:
  friend class Lock;
  std::mutex mutex_;
};

class TWINKLE_THREAD_MARK(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) TWINKLE_THREAD_MARK(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~Lock() TWINKLE_THREAD_MARK(release_capability()) {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  // Lets go of the mutex until `ready` is notified. Wakes up for no reason too: ask again.
  void wait(std::condition_variable& ready) { ready.wait(lock_); }
  // The same, for so many seconds at most.
  void wait_for(std::condition_variable& ready, double seconds) {
    ready.wait_for(lock_, std::chrono::duration<double>(seconds));
  }
  // The same, until a time at the latest. False: that time has come.
  bool wait_until(std::condition_variable& ready, std::chrono::steady_clock::time_point time) {
    return ready.wait_until(lock_, time) == std::cv_status::no_timeout;
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace twinkle
