// A rank that is led: does what the leader's commands say, on a thread of its own, and hands out
// the results of what its own callers have submitted. When the group breaks, all that waits ends
// with kInternal, and so does what comes.
#pragma once
#include <future>
#include <map>
#include <optional>
#include <string>
#include <thread>

#include "twinkle/base/guarded.h"
#include "twinkle/engine/background/background.h"
#include "twinkle/engine/group/command.h"
#include "twinkle/engine/group/door.h"
#include "twinkle/engine/group/group.h"
#include "twinkle/engine/schedule/executor.h"

namespace twinkle::engine {

class Follower {
 public:
  // Both outlive it. `local` computes with the group's data.
  Follower(Executor& local, const Group& group);
  ~Follower() { join(); }

  // Waits for the leader's end, or that of the group.
  void join();

  // Enters an operation of this rank's caller: its part of the result. Errors are the door's.
  std::future<Result> submit(Door& door, const Operation& mine);

 private:
  struct Waiting {
    std::promise<Result> promise;
    std::optional<Door::Entry> entry;  // once this rank's caller has come back from the door
    std::optional<std::variant<Result, std::exception_ptr>> outcome;  // once it has ended
  };
  void loop();
  bool obey(const Command& command);  // false: it was the last one
  void take(const Command& command);  // its news
  std::future<Result> result(Door::Entry entry);
  const Operation& operation(int64_t number);  // waits for this rank's caller; until it is told
  void absent(const std::string& why);
  std::string run(const Command& command);
  void begin_to_write(const Command& command);
  void told(const Command::Told& told);
  void settle(int64_t number) REQUIRES(mutex_);
  void end(const std::string& why);

  Executor& local_;
  const Group& group_;
  std::map<int64_t, Result>
      results_;  // results of committed operations, by ids, until they are reported
  std::map<int64_t, Rest> left_;  // for Saves
  Background writer_{[] {}};      // for those that have begun

  Mutex mutex_;
  std::condition_variable entered_;
  std::map<int64_t, Waiting> waiting_ GUARDED_BY(mutex_);  // by numbers
  std::string absent_ GUARDED_BY(mutex_);  // a caller has not come back from the door; else empty
  std::string why_ GUARDED_BY(mutex_);     // it has ended
  std::thread thread_;
};

}  // namespace twinkle::engine
