// The leader's Executor: runs each call on its own and on every follower's, in one order, and sees
// that they end alike. What only the leader can know, as clocks, files of a Save and who cancels,
// stays with it. A call that breaks the group fails with kInternal, as does every call after it.
#pragma once
#include <map>
#include <string>

#include "twinkle/base/guarded.h"
#include "twinkle/engine/group/command.h"
#include "twinkle/engine/group/group.h"
#include "twinkle/engine/schedule/accepted.h"
#include "twinkle/engine/schedule/executor.h"

namespace twinkle::engine {

class GroupExecutor : public Executor {
 public:
  // Both outlive it. `local` computes with the group's data.
  GroupExecutor(Executor& local, const Group& group);
  ~GroupExecutor() override { close(); }

  // Ends the followers; the dispatcher has ended.
  void close();

  // The followers have this operation as the ranks' `number`th. It lives until tell(), and is
  // submitted after this. Any thread.
  void entered(int64_t number, const Operation& operation);
  // How the `number`th operation of the ranks has ended, which `outcome` keeps. Any thread.
  void tell(int64_t number, const Outcome& outcome);

  void begin() override { local_.begin(); }
  double seconds() const override { return local_.seconds(); }
  bool changes_base(const Operation& operation) override { return local_.changes_base(operation); }
  bool joins(const Operation& operation) const override { return local_.joins(operation); }
  int64_t max_result_bytes(const Operation& operation, bool streams) const override {
    return local_.max_result_bytes(operation, streams);
  }
  std::shared_ptr<Prepared> prepare(const Operation& operation, const Reserve& reserve) override {
    return local_.prepare(operation, reserve);
  }
  bool waits(const Operation& operation) override { return local_.waits(operation); }
  SampleRoom sample_room(const Sample& sample, int64_t promised) override {
    return local_.sample_room(sample, promised);
  }
  int64_t batch_room() override { return local_.batch_room(); }
  int64_t batch_bytes(const std::string& tenant) override { return local_.batch_bytes(tenant); }
  FirstPart first_part(const Operation& operation) override;
  Result run(const Operation& operation, Prepared* prepared) override;
  void run_batch(std::span<const Work> batch, const std::atomic<bool>& stop,
                 BatchOutcome& outcome) override;
  void start(int64_t id, const Sample& sample, Share share, SampleHooks hooks,
             Prepared* prepared) override;
  std::vector<Ended> step() override;
  int64_t newest() const override { return local_.newest(); }
  int64_t num_generated(int64_t id) const override { return local_.num_generated(id); }
  Result commit(int64_t id) override;
  void undo(int64_t id) override;

 private:
  Result write(const Rest& rest, int64_t number);
  void call(Command command, const std::function<std::string()>& run);
  template <class Content>  // an Operation, or what it holds
  Command::Run named(int64_t id, const Content& content);
  void acquire();
  void release();
  void pass_on() REQUIRES(mutex_);
  void broken(const std::string& why);

  Executor& local_;
  const Group& group_;
  int64_t num_saves_ = 0;  // the dispatcher's thread

  Mutex mutex_;
  // Numbers of operations that have not been told, by where what they hold lies.
  std::map<const void*, int64_t> numbers_ GUARDED_BY(mutex_);
  // Who talks to the followers: one after the other, in the order in which they came.
  std::condition_variable next_;
  int64_t num_came_ GUARDED_BY(mutex_) = 0, num_left_ GUARDED_BY(mutex_) = 0;
  bool closing_ GUARDED_BY(mutex_) = false;
  Command news_ GUARDED_BY(mutex_);     // for the next command
  std::string why_ GUARDED_BY(mutex_);  // broken; else empty
};

}  // namespace twinkle::engine
