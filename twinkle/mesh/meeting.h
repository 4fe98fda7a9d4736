// Where ranks that are threads of one process meet: each brings what it has, and the last one to
// come does the work of all.
#pragma once
#include <chrono>
#include <functional>
#include <string>

#include "twinkle/base/error.h"
#include "twinkle/base/guarded.h"

namespace twinkle::mesh {

class Meeting {
 public:
  Meeting(int size, double timeout_s) : size_(size), timeout_s_(timeout_s) {}

  // Calls `bring` of every rank, and then `end` of the last one, none beside another; then all
  // return. What `end` throws closes the meeting.
  void meet(int rank, const std::function<void()>& bring, const std::function<void()>& end) {
    Lock lock(mutex_);
    require_open();
    const int64_t round = round_;
    bring();
    if (++num_here_ < size_) {
      wait(lock, rank, [&]() REQUIRES(mutex_) { return round_ != round; });
    } else {
      try {
        end();
      } catch (const std::exception& error) {
        if (why_.empty()) why_ = error.what();
        failed_ = round;
      }
      num_here_ = 0;
      ++round_;
      changed_.notify_all();
    }
    // A rank that has left since has closed the meeting, which this round does not mind.
    if (round_ == round || failed_ == round) require_open();
  }

  // Calls `change`, for who waits for it.
  void change(const std::function<void()>& change) {
    const Lock lock(mutex_);
    require_open();
    change();
    changed_.notify_all();
  }
  // Waits until `ready` is true after another rank's change, and calls `then`.
  void wait(int rank, const std::function<bool()>& ready, const std::function<void()>& then) {
    Lock lock(mutex_);
    wait(lock, rank, ready);
    require_open();
    then();
  }

  void close(const std::string& why) {
    const Lock lock(mutex_);
    if (why_.empty()) why_ = why;
    changed_.notify_all();
  }

 private:
  void require_open() REQUIRES(mutex_) { require(why_.empty(), Code::kInternal, why_); }

  void wait(Lock& lock, int rank, const std::function<bool()>& ready) REQUIRES(mutex_) {
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                         std::chrono::duration<double>(timeout_s_));
    while (!ready() && why_.empty()) {
      if (lock.wait_until(changed_, end) || ready() || !why_.empty()) continue;
      std::ostringstream text;
      text << "mesh: rank " << rank << " of " << size_ << " has waited for the others for "
           << timeout_s_ << " s";
      why_ = text.str();
      changed_.notify_all();
    }
  }

  const int size_;
  const double timeout_s_;
  Mutex mutex_;
  std::condition_variable changed_;
  int num_here_ GUARDED_BY(mutex_) = 0;
  int64_t round_ GUARDED_BY(mutex_) = 0, failed_ GUARDED_BY(mutex_) = -1;
  std::string why_ GUARDED_BY(mutex_);
};

}  // namespace twinkle::mesh
