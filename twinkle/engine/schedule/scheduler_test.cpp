#include "twinkle/engine/schedule/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "twinkle/base/random.h"

namespace twinkle::engine {
namespace {

using Served = std::map<std::string, int64_t>;

// Operations of drawn sizes, what was run of them, and which tenants had work left after each
// batch.
class Drawn {
 public:
  Drawn(Scheduler& scheduler, uint64_t seed) : scheduler_(scheduler), seed_(seed) {}

  uint64_t below(uint64_t n) { return key_of(seed_, draws_++) % n; }

  int64_t push(const std::string& tenant, size_t num_sequences, int64_t longest,
               bool joins = true) {
    std::vector<int64_t> tokens(num_sequences);
    for (int64_t& n : tokens) n = 1 + static_cast<int64_t>(below(static_cast<uint64_t>(longest)));
    const int64_t id = next_id_++;
    for (const int64_t n : tokens) queued_[tenant] += n;
    operations_[id] = {tenant, tokens, joins};
    scheduler_.push(tenant, id, std::move(tokens), joins);
    return id;
  }

  // Runs a batch, checks it, ends what is complete. Tokens by tenant.
  Served batch(int64_t budget) {
    Served served;
    int64_t total = 0;
    size_t sequences = 0;
    std::map<std::string, const Op*> before;
    for (const Slice& slice : scheduler_.next_batch()) {
      Op& op = operations_.at(slice.id);
      if (const Op* other = std::exchange(before[op.tenant], &op)) {
        EXPECT_TRUE(other->joins && op.joins) << "two operations of a tenant in one batch";
        EXPECT_EQ(slice.last, op.tokens.size()) << "one that joins is whole";
      }
      EXPECT_EQ(slice.first, op.done) << "lost, run twice or out of order";
      EXPECT_LT(slice.first, slice.last);
      for (const auto& [id, other] : operations_) {
        if (id >= slice.id) break;
        EXPECT_TRUE(other.tenant != op.tenant || other.ended) << "an earlier operation waits";
      }
      for (size_t s = slice.first; s < slice.last; ++s, ++sequences) {
        served[op.tenant] += op.tokens[s];
        queued_[op.tenant] -= op.tokens[s];
        total += op.tokens[s];
      }
      op.done = slice.last;
      if (op.done < op.tokens.size()) continue;
      op.ended = true;
      EXPECT_TRUE(scheduler_.remove(op.tenant, slice.id));
    }
    EXPECT_TRUE(total <= budget || sequences == 1) << total << " tokens";
    return served;
  }

  int64_t queued(const std::string& tenant) { return queued_[tenant]; }

  bool all_ended() const {
    return std::all_of(operations_.begin(), operations_.end(),
                       [](const auto& op) { return op.second.ended; });
  }

 private:
  struct Op {
    std::string tenant;
    std::vector<int64_t> tokens;
    bool joins = false;
    size_t done = 0;
    bool ended = false;
  };
  Scheduler& scheduler_;
  uint64_t seed_, draws_ = 0;
  int64_t next_id_ = 1;
  std::map<int64_t, Op> operations_;
  std::map<std::string, int64_t> queued_;  // tokens
};

TEST(Scheduler, RunsEverySequenceOnceInOrderWithinTheBudget) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const int64_t budget = 1 + static_cast<int64_t>(key_of(seed, 1) % 300);
    Scheduler scheduler(budget);
    Drawn drawn(scheduler, seed);
    const uint64_t num_tenants = 1 + drawn.below(8);
    for (uint64_t t = 0; t < num_tenants; ++t)
      scheduler.set_share(std::to_string(t), {0.1 + static_cast<double>(drawn.below(50)),
                                              static_cast<int32_t>(drawn.below(3))});
    int batches = 0;
    for (int round = 0; round < 30; ++round) {
      for (uint64_t n = drawn.below(4); n > 0; --n)
        drawn.push(std::to_string(drawn.below(num_tenants)), 1 + drawn.below(12), 2 * budget,
                   drawn.below(4) > 0);
      drawn.batch(budget);
    }
    while (scheduler.has_batch() && ++batches < 10000) drawn.batch(budget);
    EXPECT_TRUE(drawn.all_ended());
    EXPECT_TRUE(scheduler.next_batch().empty());
  }
}

// The share of its weight that each backlogged tenant got in the worst window of `window` batches.
double worst_share(uint64_t seed, size_t num_tenants, bool weighted, size_t window) {
  const int64_t budget = 4096;
  Scheduler scheduler(budget);
  Drawn drawn(scheduler, seed);
  std::map<std::string, double> weights;
  double sum = 0;
  for (size_t t = 0; t < num_tenants; ++t) {
    const double weight = weighted ? 1.0 + static_cast<double>(drawn.below(4)) : 1.0;
    weights[std::to_string(t)] = weight;
    sum += weight;
    scheduler.set_share(std::to_string(t), {weight, 0});
  }
  // The first sends a hundred times what the others send, in longer sequences.
  for (int i = 0; i < 400; ++i) drawn.push("0", 1000, 256);
  std::vector<Served> history;
  for (size_t b = 0; b < 120; ++b) {
    for (size_t t = 1; t < num_tenants; ++t) {
      // Never without work, though in operations of all sizes.
      while (drawn.queued(std::to_string(t)) < 4 * budget)
        drawn.push(std::to_string(t), 1 + drawn.below(100), 1 + drawn.below(200));
    }
    history.push_back(drawn.batch(budget));
  }
  double worst = 1e9;
  for (size_t from = 0; from + window <= history.size(); ++from) {
    Served served;
    int64_t total = 0;
    for (size_t b = from; b < from + window; ++b) {
      for (const auto& [tenant, n] : history[b]) {
        served[tenant] += n;
        total += n;
      }
    }
    for (const auto& [tenant, weight] : weights)
      worst = std::min(
          worst, static_cast<double>(served[tenant]) / static_cast<double>(total) / (weight / sum));
  }
  return worst;
}

TEST(Scheduler, InAnyWindowOf20BatchesEveryTenantGetsFourFifthsOfItsWeightBesideAHundredfoldHog) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    for (const bool weighted : {false, true}) {
      EXPECT_GE(worst_share(seed, 2 + seed, weighted, 20), 0.8) << "seed " << seed << weighted;
    }
  }
}

TEST(Scheduler, ASequenceIsNeverFurtherBehindItsWeightThanTwoOfTheLongest) {
  // Any lengths up to the whole budget: what is owed stays below two sequences of the longest.
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const int64_t budget = 1000, longest = 1 + static_cast<int64_t>(key_of(seed, 0) % 500);
    Scheduler scheduler(budget);
    Drawn drawn(scheduler, seed);
    const size_t tenants = 2 + seed % 5;
    for (size_t t = 0; t < tenants; ++t) drawn.push(std::to_string(t), 4000, longest);
    std::map<std::string, int64_t> served;
    int64_t total = 0;
    for (int b = 0; b < 60; ++b) {
      for (const auto& [tenant, n] : drawn.batch(budget)) {
        served[tenant] += n;
        total += n;
      }
      for (size_t t = 0; t < tenants; ++t)
        ASSERT_GE(served[std::to_string(t)], total / static_cast<int64_t>(tenants) - 2 * longest)
            << "seed " << seed << ", batch " << b;
    }
  }
}

TEST(Scheduler, ASmallTenantWaitsNoLongerBehindAHugeOperation) {
  Scheduler scheduler(100);
  Drawn drawn(scheduler, 1);
  drawn.push("hog", 1000, 30);
  drawn.batch(100);
  drawn.push("small", 1, 30);
  EXPECT_TRUE(drawn.batch(100).contains("small"));
}

TEST(Scheduler, SmallOperationsOfATenantShareABatchUpToOneThatStandsByItself) {
  Scheduler scheduler(100);
  for (int64_t id = 1; id <= 6; ++id) scheduler.push("a", id, {10, 10}, id != 5);
  auto batch = scheduler.next_batch();
  ASSERT_EQ(batch.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(batch[i].id, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(batch[i].last, 2u);
    scheduler.remove("a", batch[i].id);
  }
  batch = scheduler.next_batch();
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].id, 5);
  scheduler.remove("a", 5);
  EXPECT_TRUE(scheduler.next_batch(false).empty());
  EXPECT_EQ(scheduler.next_batch().at(0).id, 6);
}

TEST(Scheduler, AnOperationThatDoesNotFitWholeWaitsForTheNextBatch) {
  Scheduler scheduler(100);
  scheduler.push("a", 1, {60}, true);
  scheduler.push("a", 2, {30, 30}, true);
  EXPECT_EQ(scheduler.next_batch().size(), 1u);
}

TEST(Scheduler, RoomThatATenantCanNotUseGoesToOthers) {
  Scheduler scheduler(100);
  scheduler.push("a", 1, {70, 70, 70});
  scheduler.push("b", 2, std::vector<int64_t>(100, 10));
  int64_t total = 0;
  for (const Slice& slice : scheduler.next_batch()) {
    for (size_t s = slice.first; s < slice.last; ++s) total += slice.id == 1 ? 70 : 10;
  }
  EXPECT_EQ(total, 100);
}

TEST(Scheduler, ATenantThatWasIdleHasNoCredit) {
  Scheduler scheduler(100);
  Drawn drawn(scheduler, 1);
  scheduler.set_share("idle", {1, 0});
  scheduler.push("busy", 1000, std::vector<int64_t>(2000, 10));
  for (int i = 0; i < 50; ++i) EXPECT_EQ(scheduler.next_batch().at(0).id, 1000);
  scheduler.push("idle", 1001, std::vector<int64_t>(2000, 10));
  const auto batch = scheduler.next_batch();
  ASSERT_EQ(batch.size(), 2u) << "it does not take whole batches for what it missed";
  for (const Slice& slice : batch) EXPECT_EQ(slice.last - slice.first, 5u);
}

TEST(Scheduler, AHigherPriorityComesFirstAndLeavesWhatItCanNotUse) {
  Scheduler scheduler(100);
  scheduler.set_share("high", {0.01, 1});
  scheduler.set_share("low", {100, 0});
  scheduler.push("low", 1, std::vector<int64_t>(100, 10));
  scheduler.push("high", 2, std::vector<int64_t>(12, 10));
  auto batch = scheduler.next_batch();
  ASSERT_EQ(batch.size(), 1u);
  EXPECT_EQ(batch[0].id, 2);
  batch = scheduler.next_batch();
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_EQ(batch[0].last - batch[0].first, 2u);
  EXPECT_EQ(batch[1].last - batch[1].first, 8u);
}

TEST(Scheduler, ASequenceLongerThanTheBudgetIsABatchOfItsOwn) {
  Scheduler scheduler(100);
  scheduler.push("long", 1, {1000});
  scheduler.push("short", 2, std::vector<int64_t>(500, 10));
  int batches = 0;
  while (true) {
    const auto batch = scheduler.next_batch();
    ASSERT_LT(++batches, 30) << "it must come when what it costs has been earned";
    if (batch.size() == 1 && batch[0].id == 1) break;
    for (const Slice& slice : batch) ASSERT_EQ(slice.id, 2);
  }
  EXPECT_EQ(scheduler.next_batch().at(0).id, 2);
}

TEST(Scheduler, ARewoundOperationRunsFromItsFirstSequenceAndAloneWhenAsked) {
  Scheduler scheduler(100);
  scheduler.push("a", 1, {30, 30});
  scheduler.push("b", 2, {30, 30});
  ASSERT_EQ(scheduler.next_batch().size(), 2u);
  scheduler.rewind("a", 1, true);
  scheduler.rewind("b", 2, false);
  std::vector<std::vector<Slice>> batches{scheduler.next_batch(), scheduler.next_batch()};
  std::sort(batches.begin(), batches.end(),
            [](const auto& x, const auto& y) { return x[0].id < y[0].id; });
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(batches[i].size(), 1u);
    EXPECT_EQ(batches[i][0].id, static_cast<int64_t>(i) + 1);
    EXPECT_EQ(batches[i][0].first, 0u);
    EXPECT_EQ(batches[i][0].last, 2u);
  }
}

TEST(Scheduler, OperationsWithoutSequencesComeOneATenantInOrder) {
  Scheduler scheduler(100);
  scheduler.push("a", 1, {});
  scheduler.push("a", 2, {10});
  scheduler.push("a", 3, {});
  scheduler.push("b", 4, {});
  EXPECT_EQ(scheduler.heads(), (std::vector<int64_t>{1, 4}));
  EXPECT_FALSE(scheduler.has_batch());
  EXPECT_TRUE(scheduler.remove("a", 1));
  EXPECT_EQ(scheduler.heads(), (std::vector<int64_t>{4}));
  EXPECT_FALSE(scheduler.has_batch(false)) << "it has not begun";
  EXPECT_EQ(scheduler.next_batch().at(0).id, 2);
  EXPECT_TRUE(scheduler.others_have_begun("b"));
  EXPECT_FALSE(scheduler.others_have_begun("a"));
  EXPECT_TRUE(scheduler.remove("a", 2));
  EXPECT_EQ(scheduler.heads(), (std::vector<int64_t>{3, 4}));
  EXPECT_FALSE(scheduler.remove("a", 2));
}

TEST(Scheduler, TheSameCallsGiveTheSameBatches) {
  const auto run = [] {
    Scheduler scheduler(64);
    Drawn drawn(scheduler, 9);
    std::vector<Served> out;
    for (int i = 0; i < 60; ++i) {
      drawn.push(std::to_string(drawn.below(5)), 1 + drawn.below(9), 40);
      out.push_back(drawn.batch(64));
    }
    return out;
  };
  EXPECT_EQ(run(), run());
}

TEST(Scheduler, TenantsBeginWhereTheirStateHasRoomEachInItsTurn) {
  Scheduler scheduler(10);
  const auto ids = [&](int64_t bytes) {
    std::vector<int64_t> out;
    const BatchRoom room{bytes, [](const std::string&) { return int64_t{4}; }};
    for (const Slice& slice : scheduler.next_batch(true, room)) {
      out.push_back(slice.id);
      EXPECT_TRUE(slice.id > 5 || slice.last == 2) << "one that has begun needs no more room";
    }
    return out;
  };
  const auto end = [&](int64_t id) { scheduler.remove(std::string(1, static_cast<char>(id)), id); };
  for (int64_t id = 1; id <= 5; ++id)
    scheduler.push(std::string(1, static_cast<char>(id)), id, {1, 1});
  EXPECT_EQ(ids(9), (std::vector<int64_t>{1, 2}));
  end(1), end(2);
  EXPECT_EQ(ids(3), (std::vector<int64_t>{3})) << "one always may";
  end(3);
  EXPECT_EQ(ids(8), (std::vector<int64_t>{4, 5}));
  end(4), end(5);
  scheduler.push("\x06", 6, {8, 8});
  EXPECT_EQ(ids(0), (std::vector<int64_t>{6}));
  scheduler.push("\x07", 7, {2});
  EXPECT_EQ(ids(0), (std::vector<int64_t>{6})) << "its state is in use until it has ended";
  end(6);
  EXPECT_EQ(ids(0), (std::vector<int64_t>{7}));
}

}  // namespace
}  // namespace twinkle::engine
