// What a lower priority gets of the room that higher ones leave, when its sequences are long.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "twinkle/engine/schedule/scheduler.h"

namespace twinkle::engine {
namespace {

// Tenants that always have operations of one sequence each queued; a batch holds 100 tokens.
class Queues {
 public:
  void add(const std::string& tenant, Share share, int64_t length, int64_t at_once = 20) {
    scheduler_.set_share(tenant, share);
    kinds_[tenant] = {length, at_once};
  }
  void stop(const std::string& tenant) { kinds_.erase(tenant); }
  // Tokens by tenant.
  std::map<std::string, int64_t> batch() {
    for (const auto& [tenant, kind] : kinds_) {
      for (; queued_[tenant] < kind.at_once; ++queued_[tenant]) {
        scheduler_.push(tenant, next_id_, {kind.length}, true);
        owner_[next_id_++] = {tenant, kind.length};
      }
    }
    std::map<std::string, int64_t> out;
    for (const Slice& slice : scheduler_.next_batch()) {
      const auto& [tenant, length] = owner_.at(slice.id);
      out[tenant] += length;
      --queued_[tenant];
      scheduler_.remove(slice.id);
    }
    for (const auto& [tenant, tokens] : out) total[tenant] += tokens;
    return out;
  }
  void batches(int n) {
    for (int i = 0; i < n; ++i) batch();
  }
  double part(const std::string& tenant) const {
    int64_t all = 0;
    for (const auto& [name, tokens] : total) all += tokens;
    const auto mine = total.find(tenant);
    return mine == total.end() ? 0 : static_cast<double>(mine->second) / static_cast<double>(all);
  }

  std::map<std::string, int64_t> total;

 private:
  struct Kind {
    int64_t length, at_once;
  };
  Scheduler scheduler_{100};
  std::map<std::string, Kind> kinds_;
  std::map<std::string, int64_t> queued_;
  std::map<int64_t, std::pair<std::string, int64_t>> owner_;
  int64_t next_id_ = 1;
};

TEST(Priorities, ALongSequenceGetsItsShareOfTheRoomThatIsTooShortForIt) {
  for (const double weight : {1.0, 3.0}) {
    Queues queues;
    queues.add("high", {1, 1}, 70);  // leaves 30
    queues.add("long", {weight, 0}, 60);
    queues.add("short", {1, 0}, 10);
    queues.batches(400);
    const double low = queues.part("long") + queues.part("short");
    EXPECT_GE(queues.part("long") / low, 0.95 * weight / (weight + 1));
    EXPECT_GE(queues.part("short") / low, 0.95 / (weight + 1));
    EXPECT_NEAR(queues.part("high"), 0.7, 0.01) << "no less than beside short sequences alone";
  }
}

TEST(Priorities, NobodyElseOfItsPriorityNeedsToBeThere) {
  Queues queues;
  queues.add("high", {1, 1}, 40, 1);  // leaves 60: two batches pay for 90, the third runs it
  queues.add("long", {1, 0}, 90);
  queues.batches(300);
  EXPECT_EQ(queues.total["long"], 100 * 90);
  EXPECT_EQ(queues.total["high"], 200 * 40);
}

TEST(Priorities, ASequenceLongerThanABatchComesTooAndSoDoesOneThatRunsAlone) {
  Queues queues;
  queues.add("high", {1, 1}, 70);
  queues.add("long", {1, 0}, 250);
  queues.batches(100);
  EXPECT_GE(queues.part("long"), 0.25);

  Scheduler scheduler(100);
  scheduler.set_share("high", {1, 1});
  scheduler.push("low", 1, {10});
  ASSERT_EQ(scheduler.next_batch().size(), 1u);
  scheduler.rewind(1, true);
  std::vector<int64_t> seen;
  for (int64_t id = 2; id < 5; ++id) {
    scheduler.push("high", id, {70});
    const auto batch = scheduler.next_batch();
    ASSERT_EQ(batch.size(), 1u);
    seen.push_back(batch[0].id);
    scheduler.remove(batch[0].id);
  }
  EXPECT_EQ(seen, (std::vector<int64_t>{2, 1, 3}));
}

TEST(Priorities, WhereNoRoomIsLeftALowerOneWaits) {
  Queues queues;
  queues.add("high", {1, 1}, 10);
  queues.add("long", {1, 0}, 60);
  queues.add("short", {1, 0}, 10);
  queues.batches(100);
  EXPECT_EQ(queues.part("high"), 1.0);
  queues.stop("high");
  queues.batches(40);
  EXPECT_GT(queues.total["long"], 0);
  EXPECT_GT(queues.total["short"], 0);
}

TEST(Priorities, ASequenceThatFitsBeforeItIsPaidForIsPaidOnce) {
  Queues queues;
  queues.add("long", {1, 0}, 60);
  queues.add("short", {1, 0}, 10);
  for (int i = 0; i < 200; ++i) {
    queues.add("high", {1, 1}, 70, 1);  // leaves 30, which may be saved
    queues.batch();
    queues.stop("high");  // the next batch is theirs
    queues.batch();
  }
  EXPECT_NEAR(static_cast<double>(queues.total["long"]), static_cast<double>(queues.total["short"]),
              120);
}

TEST(Priorities, RoomBesideASequenceThatWasSavedForIsForHigherOnesAlone) {
  Queues queues;
  queues.add("high", {1, 1}, 70, 1);
  queues.add("higher", {1, 2}, 5, 2);  // leaves 90, of which 20 are left
  queues.add("long", {1, 0}, 60);
  queues.add("short", {1, 0}, 10);
  int led = 0;
  for (int i = 0; i < 200; ++i) {
    const auto batch = queues.batch();
    EXPECT_EQ(batch.at("higher"), 10);
    if (!batch.contains("long")) {
      EXPECT_EQ(batch.at("high"), 70);
      continue;
    }
    ++led;
    EXPECT_EQ(batch, (std::map<std::string, int64_t>{{"higher", 10}, {"long", 60}}));
  }
  EXPECT_GT(led, 20);
}

}  // namespace
}  // namespace twinkle::engine
