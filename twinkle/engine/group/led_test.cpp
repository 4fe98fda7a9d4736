// Leader, followers and door over null executors, without torch: what the thread sanitizer watches.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/parallel.h"
#include "twinkle/engine/group/door.h"
#include "twinkle/engine/group/follower.h"
#include "twinkle/engine/group/group_executor.h"
#include "twinkle/engine/schedule/dispatcher.h"
#include "twinkle/engine/schedule/null_executor_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::engine {
namespace {

std::vector<Group> groups_of(int size) {
  auto door = mesh::thread_channels(size), control = mesh::thread_channels(size),
       data = mesh::thread_channels(size), saves = mesh::thread_channels(size);
  std::vector<Group> out(static_cast<size_t>(size));
  for (size_t r = 0; r < out.size(); ++r)
    out[r] = {std::move(door[r]), std::move(control[r]), std::move(data[r]), std::move(saves[r]),
              nullptr};
  return out;
}

// A rank as Engine has it, with a null executor.
class LedRank {
 public:
  explicit LedRank(Group group) : group_(std::move(group)), door_(group_) {
    if (group_.rank() > 0) {
      follower_.emplace(null_, group_);
    } else {
      leader_.emplace(null_, group_);
      dispatcher_.emplace(DispatcherOptions{}, *leader_);
    }
  }
  ~LedRank() { close(); }

  std::future<Result> submit(const Operation& operation) {
    if (follower_) return follower_->submit(door_, operation);
    const Door::Entry entry = door_.enter(operation);
    const auto promise = std::make_shared<std::promise<Result>>();
    std::vector<Operation> one{entry.joined.operation};
    std::vector<Accepted> accepted = dispatcher_->accept(one);
    leader_->entered(entry.number, accepted[0].operation());
    const auto end = [this, promise, entry](const Outcome& outcome) {
      leader_->tell(entry.number, outcome);
      if (outcome.error) return promise->set_exception(named(outcome.error, entry.name));
      promise->set_value(part_of(outcome.result, entry.joined.part));
    };
    last_ = dispatcher_->submit(std::move(accepted), {end})[0];
    return promise->get_future();
  }
  // Cancels rank 0's last submission.
  bool cancel() { return dispatcher_->cancel(last_); }
  void close() {
    if (std::exchange(closed_, true)) return;
    door_.close();
    if (dispatcher_) dispatcher_->close();
    if (leader_) leader_->close();
    if (follower_) follower_->join();
  }
  // Ends as a process that is killed.
  void vanish(const std::string& why) const { group_.close(why); }
  NullExecutor& null() { return null_; }

 private:
  Group group_;
  NullExecutor null_;
  Door door_;
  std::optional<GroupExecutor> leader_;
  std::optional<Dispatcher> dispatcher_;
  std::optional<Follower> follower_;
  int64_t last_ = 0;
  bool closed_ = false;
};

void on_led_ranks(std::vector<Group> of_ranks,
                  const std::function<void(LedRank&, int rank)>& script) {
  std::vector<std::thread> threads;
  for (Group& group : of_ranks) {
    threads.emplace_back([&] {
      const int r = group.rank();
      LedRank rank(std::move(group));
      script(rank, r);
    });
  }
  for (std::thread& t : threads) t.join();
}
void on_led_ranks(int size, const std::function<void(LedRank&, int rank)>& script) {
  on_led_ranks(groups_of(size), script);
}

ForwardBackward work_of(int rank) {
  ForwardBackward out{.tenant = "a"};
  for (int i = 0; i <= rank; ++i) out.sequences.push_back({.input_ids = {1, 2}, .labels = {2, 3}});
  return out;
}

TEST(Led, EveryRankDoesWhatTheLeaderDoesAndGetsItsOwnPart) {
  on_led_ranks(3, [](LedRank& rank, int r) {
    std::vector<std::future<Result>> results;
    results.push_back(rank.submit(Create{.tenant = "a", .lora_json = "{}"}));
    for (int i = 0; i < 20; ++i) {
      results.push_back(rank.submit(work_of(r)));
      results.push_back(rank.submit(Step{.tenant = "a"}));
    }
    results.push_back(rank.submit(Step{.tenant = "a", .optimizer = "fail"}));
    for (size_t i = 0; i + 1 < results.size(); ++i) EXPECT_NO_THROW(results[i].get()) << i;
    EXPECT_THROW(results.back().get(), std::exception);
    rank.close();
    EXPECT_GT(rank.null().num_batches, 0);
  });
}

TEST(Led, AnErrorThatAllRanksHaveFailsTheOperationAlone) {
  on_led_ranks(2, [](LedRank& rank, int r) {
    rank.submit(Create{.tenant = "a", .lora_json = "{}"}).get();
    ForwardBackward bad = work_of(r);
    bad.loss = "fail";
    EXPECT_THROW(rank.submit(bad).get(), std::exception);
    EXPECT_NO_THROW(rank.submit(work_of(r)).get());
  });
}

TEST(Led, WhatRank0CancelsIsToldToTheOthersByItsNameAndAllGoOn) {
  std::promise<void> cancelled;
  const auto is_cancelled = cancelled.get_future().share();
  on_led_ranks(3, [&](LedRank& rank, int r) {
    rank.submit(Create{.tenant = "a", .lora_json = "{}"}).get();
    rank.null().on_batch = [&] { is_cancelled.wait(); };
    std::future<Result> result = rank.submit(work_of(r));
    if (r == 0) {
      EXPECT_TRUE(rank.cancel());
      cancelled.set_value();
    }
    try {
      result.get();
      ADD_FAILURE() << r;
    } catch (const Error& e) {
      EXPECT_EQ(e.code, r == 0 ? Code::kConflict : Code::kInternal);
      expect_error(r == 0 ? "engine: cancelled" : "rank 0 has cancelled it, as an interrupt",
                   [&] { throw e; });
    }
    EXPECT_NO_THROW(rank.submit(work_of(r)).get());
  });
}

TEST(Led, RanksThatSubmitDifferentThingsAreAllToldWhose) {
  on_led_ranks(2, [](LedRank& rank, int r) {
    rank.submit(Create{.tenant = "a", .lora_json = "{}"}).get();
    const std::string text =
        "engine: operation 2: rank 0 sent forward_backward of 'a', rank 1 sent step of 'a': all "
        "ranks must call the same methods in the same order";
    const Operation mine = r == 0 ? Operation(work_of(r)) : Operation(Step{.tenant = "a"});
    EXPECT_EQ(invalid_of([&] { rank.submit(mine); }), text);
    EXPECT_EQ(invalid_of([&] { rank.submit(Step{.tenant = "a", .max_grad_norm = r + 1.0}); }),
              "engine: operation 3: rank 0 and rank 1 sent step of 'a' with different values: but "
              "for their sequences they must be the same");
    EXPECT_NO_THROW(rank.submit(work_of(r)).get()) << "nothing was changed";
  });
}

TEST(Led, ARankThatEndsOtherwiseBreaksTheGroupOnEveryRankByName) {
  on_led_ranks(3, [](LedRank& rank, int r) {
    rank.submit(Create{.tenant = "a", .lora_json = "{}"}).get();
    if (r == 1) rank.null().on_batch = [] { throw std::runtime_error("no memory"); };
    const std::string why = error_of([&] { rank.submit(work_of(r)).get(); });
    EXPECT_NE(why.find("rank 1: no memory"), std::string::npos) << why;
    // Whatever comes now fails with the same, on whichever thread it is seen first.
    EXPECT_THROW(rank.submit(work_of(r)).get(), Error);
  });
}

TEST(Led, EveryRankWritesItsPartOfASaveAndOneThatCannotFailsTheSaveAlone) {
  const ScratchDir folder;
  on_led_ranks(3, [&](LedRank& rank, int r) {
    std::atomic<int> written = 0;
    rank.null().on_write = [&] { ++written; };
    rank.submit(Create{.tenant = "a", .lora_json = "{}"}).get();
    const Save save{.tenant = "a", .directory = folder.path().string(), .optimizer = true};
    rank.submit(save).get();
    EXPECT_EQ(written, 1);
    rank.null().on_write = [&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      if (r == 2) fail(Code::kInvalid, "null: a full disk");
    };
    std::future<Result> fails = rank.submit(save);
    EXPECT_NO_THROW(rank.submit(work_of(r)).get()) << "meanwhile";
    EXPECT_EQ(error_of([&] { fails.get(); }), "engine: rank 2: null: a full disk");
    rank.null().on_write = [] {};
    EXPECT_NO_THROW(rank.submit(save).get());
  });
}

// A channel of a rank whose script is interrupted at its `when`th call: before the others hear of
// it, or behind.
class Interrupting : public mesh::Channel {
 public:
  Interrupting(std::unique_ptr<mesh::Channel> channel, int when, bool is_behind)
      : Channel(channel->rank(), channel->size()),
        channel_(std::move(channel)),
        when_(when),
        is_behind_(is_behind) {}
  std::vector<std::string> all_gather(const std::string& bytes) override {
    const bool is_now = comes();
    std::vector<std::string> out = channel_->all_gather(bytes);
    if (!is_now) return out;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the others have begun
    throw Interrupted();
  }
  std::string broadcast(std::string bytes, int root) override {
    comes();
    return channel_->broadcast(std::move(bytes), root);
  }
  void close(const std::string& why) noexcept override { channel_->close(why); }

 private:
  bool comes() {
    const bool is_now = ++num_ == when_;
    if (is_now && !is_behind_) throw Interrupted();
    return is_now;
  }

  const std::unique_ptr<mesh::Channel> channel_;
  const int when_;
  const bool is_behind_;
  int num_ = 0;
};

class Interrupts : public testing::TestWithParam<std::tuple<int, bool>> {};

TEST_P(Interrupts, OfARankAtTheDoorEndTheCallsOfTheOthersByName) {
  const auto [interrupted, is_behind] = GetParam();
  std::vector<Group> groups = groups_of(2);
  Group& its = groups.at(static_cast<size_t>(interrupted));
  its.door = std::make_unique<Interrupting>(std::move(its.door), 2, is_behind);
  on_led_ranks(std::move(groups), [&, interrupted = interrupted](LedRank& rank, int r) {
    rank.submit(Create{.tenant = "a", .lora_json = "{}"}).get();
    if (r == interrupted) {  // and ends
      EXPECT_THROW(rank.submit(work_of(r)), Interrupted);
      return;
    }
    const std::string why = error_of([&] { rank.submit(work_of(r)).get(); });
    EXPECT_NE(why.find("its script was interrupted"), std::string::npos) << why;
    EXPECT_THROW(rank.submit(work_of(r)).get(), Error) << "nothing is done any more";
  });
}

INSTANTIATE_TEST_SUITE_P(All, Interrupts, testing::Combine(testing::Values(0, 1), testing::Bool()));

TEST(Led, NewsThatTheLeaderCannotSendWhateverWasThrownLeaveNobodyWaiting) {
  std::vector<Group> groups = groups_of(2);
  groups[0].control = std::make_unique<Interrupting>(std::move(groups[0].control), 1, false);
  NullExecutor own, others;
  Follower follower(others, groups[1]);
  GroupExecutor leader(own, groups[0]);
  const Outcome refused{.error = std::make_exception_ptr(Error(Code::kInvalid, "refused"))};
  EXPECT_NO_THROW(leader.tell(1, refused));
  expect_error("its script was interrupted", [&] { leader.step(); });
}

TEST(Led, AnOperationThatHasEndedByAnInterruptIsToldAsThat) {
  std::vector<Group> groups = groups_of(2);
  NullExecutor own, others;
  Door first(groups[0]), second(groups[1]);
  Follower follower(others, groups[1]);
  GroupExecutor leader(own, groups[0]);
  std::thread enters([&] { first.enter(work_of(0)); });
  std::future<Result> result = follower.submit(second, work_of(1));
  enters.join();
  EXPECT_NO_THROW(leader.tell(1, {.error = std::make_exception_ptr(Interrupted())}));
  leader.close();
  expect_error("operation 1, forward_backward of 'a': its script was interrupted",
               [&] { result.get(); });
}

TEST(Led, ARankThatGoesEndsEveryCallOnEveryRank) {
  on_led_ranks(3, [](LedRank& rank, int r) {
    rank.submit(Create{.tenant = "a", .lora_json = "{}"}).get();
    if (r == 2) return rank.vanish("mesh: rank 2 has gone");
    const std::string why = error_of([&] { rank.submit(work_of(r)).get(); });
    EXPECT_NE(why.find("rank 2 has gone"), std::string::npos) << why;
  });
}

TEST(Led, ARankThatClosesIsTheEndForThoseThatGoOn) {
  on_led_ranks(2, [](LedRank& rank, int r) {
    rank.submit(Create{.tenant = "a", .lora_json = "{}"}).get();
    if (r == 1) return rank.close();
    EXPECT_EQ(error_of([&] { rank.submit(work_of(r)); }),
              "engine: operation 2, forward_backward of 'a': engine: rank 1 has closed its engine");
  });
}

}  // namespace
}  // namespace twinkle::engine
