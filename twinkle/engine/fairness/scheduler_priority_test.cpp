// Priorities are strict: a lower one gets the room that higher ones leave.
#include <gtest/gtest.h>

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
      scheduler_.remove(tenant, slice.id);
    }
    for (const auto& [tenant, tokens] : out) total[tenant] += tokens;
    return out;
  }
  void batches(int n) {
    for (int i = 0; i < n; ++i) batch();
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

TEST(Priorities, TheRoomThatIsLeftIsSharedByWeightAmongThoseWhomItHolds) {
  Queues queues;
  queues.add("high", {1, 1}, 40, 1);  // leaves 60
  queues.add("one", {1, 0}, 20);
  queues.add("two", {2, 0}, 20);
  queues.batches(100);
  EXPECT_EQ(queues.total["high"], 4000);
  EXPECT_NEAR(static_cast<double>(queues.total["one"]), 2000, 60);
  EXPECT_NEAR(static_cast<double>(queues.total["two"]), 4000, 60);
}

TEST(Priorities, ASequenceTooLongForTheRoomHoldsNobodyBackAndWaitsUntilThereIsMore) {
  Queues queues;
  queues.add("high", {1, 1}, 70, 1);  // leaves 30
  queues.add("long", {1, 0}, 60);
  queues.add("short", {1, 0}, 10);
  queues.batches(50);
  EXPECT_EQ(queues.total["high"], 50 * 70);
  EXPECT_EQ(queues.total["short"], 50 * 30);
  EXPECT_EQ(queues.total["long"], 0);
  queues.stop("high");
  queues.batch();
  EXPECT_EQ(queues.batch().at("long"), 60);
}

TEST(Priorities, WhereNoRoomIsLeftALowerOneWaits) {
  Queues queues;
  queues.add("high", {1, 1}, 10);
  queues.add("long", {1, 0}, 60);
  queues.add("short", {1, 0}, 10);
  queues.batches(100);
  EXPECT_EQ(queues.total["high"], 100 * 100);
  EXPECT_EQ(queues.total["long"] + queues.total["short"], 0);
  queues.stop("high");
  queues.batches(40);
  EXPECT_GT(queues.total["long"], 0);
  EXPECT_GT(queues.total["short"], 0);
}

}  // namespace
}  // namespace twinkle::engine
