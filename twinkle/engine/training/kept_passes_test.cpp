#include "twinkle/engine/training/kept_passes.h"

#include <gtest/gtest.h>

#include <optional>

#include "twinkle/engine/training/training_for_test.h"

namespace twinkle::engine {
namespace {

// Runs one operation of tenant a, whose loss is of the whole, a sequence a batch.
class KeptPassesOnADecoder : public TrainingOnADecoder {
 protected:
  // Undefined: it goes on, or runs again.
  std::optional<double> run_sequence(const Operation& whole, size_t s) {
    for (const Ended& e : run({{1, &whole, s, s + 1}}).ended) {
      if (e.error) std::rethrow_exception(e.error);
      return training_.commit(e.id).loss;
    }
    return {};
  }
  // From sequence `first` of the first round on; the loss and the gradients, which go.
  std::pair<double, uint64_t> finish(const Operation& whole, size_t first = 0) {
    for (size_t s = first; s < 2; ++s) EXPECT_FALSE(run_sequence(whole, s));
    return learn(whole);
  }
  std::pair<double, uint64_t> learn(const Operation& whole) {
    EXPECT_FALSE(run_sequence(whole, 0));
    const std::pair out(run_sequence(whole, 1).value(), gradients("a"));
    tenants_.at("a")->zero_grad();
    EXPECT_EQ(training_.num_kept_bytes(), 0);
    return out;
  }
  int64_t bytes_of(const ForwardBackward& op) const {
    model::Batch batch;
    for (const Example& s : op.sequences)
      batch.rows.add(std::ssize(s.input_ids), {.slot = tenants_.at("a")->slot()});
    return decoder_.activation_bytes(batch);
  }
  static ForwardBackward pair(const char* tenant, size_t num_tokens = 6) {
    return {.tenant = tenant,
            .sequences = {drawn(1, num_tokens), drawn(2, num_tokens + 2)},
            .loss = "CPOLoss"};
  }

  const ForwardBackward pair_ = pair("a");
  const Operation whole_ = pair_, theirs_ = work("b", 2);
};

TEST_F(KeptPassesOnADecoder, AreThoseOfTheWholeOperationWithinTheLimitOrNone) {
  const int64_t bytes = bytes_of(pair_);
  decoder_.limit_activations(1);
  const auto want = finish(whole_);
  for (const int64_t limit : {bytes - 1, bytes}) {
    decoder_.limit_activations(limit);
    EXPECT_FALSE(run_sequence(whole_, 0));
    EXPECT_EQ(training_.num_kept_bytes(), limit == bytes ? bytes : 0);
    EXPECT_EQ(finish(whole_, 1), want);
  }
}

TEST_F(KeptPassesOnADecoder, GiveWayToABatchThatNeedsTheBytes) {
  decoder_.limit_activations(1);
  const auto want = finish(whole_);
  decoder_.limit_activations(bytes_of(pair_) + bytes_of(work("b")) - 1);
  EXPECT_FALSE(run_sequence(whole_, 0));
  succeed(2, theirs_);
  EXPECT_EQ(training_.num_kept_bytes(), 0);
  EXPECT_EQ(finish(whole_, 1), want);

  decoder_.limit_activations(bytes_of(pair_) + bytes_of(work("b")));
  EXPECT_FALSE(run_sequence(whole_, 0));
  succeed(3, theirs_);
  EXPECT_GT(training_.num_kept_bytes(), 0) << "there is room for both";
  EXPECT_EQ(finish(whole_, 1), want);

  const uint64_t before = gradients("a");
  for (const size_t s : {0, 1, 0}) EXPECT_FALSE(run_sequence(whole_, s));
  EXPECT_NE(gradients("a"), before) << "it has learned its first sequence";
  decoder_.limit_activations(1);
  const BatchOutcome outcome = run({{4, &theirs_, 0, 2}});
  ASSERT_EQ(outcome.rewound.size(), 1u);
  EXPECT_EQ(outcome.rewound[0].id, 1);
  EXPECT_EQ(gradients("a"), before);
  EXPECT_EQ(learn(whole_), want);
}

TEST_F(KeptPassesOnADecoder, GiveWayToAShortageForWhichNobodyIsBlamed) {
  const auto want = finish(whole_);
  const uint64_t before = gradients("a");
  for (const char* tenant : {"a", "b"}) {
    SCOPED_TRACE(tenant);
    {
      const Failing failing(*decoder_.linears().at(0).linear, tenants_.at(tenant)->slot());
      for (const size_t s : {0, 1}) EXPECT_FALSE(run_sequence(whole_, s));
      const bool mine = tenant == std::string("a");
      const BatchOutcome outcome = mine ? run({{1, &whole_, 0, 1}}) : run({{2, &theirs_, 0, 2}});
      EXPECT_TRUE(outcome.ended.empty());
      EXPECT_EQ(outcome.rewound.size(), mine ? 1u : 2u);
      EXPECT_EQ(training_.num_kept_bytes(), 0);
      EXPECT_EQ(gradients("a"), before);
    }
    EXPECT_EQ(learn(whole_), want);
  }
}

TEST_F(KeptPassesOnADecoder, GoWithAnOperationThatIsCancelledOrFails) {
  const uint64_t before = gradients("a");
  for (const size_t count : {1, 3}) {  // in the first round, in the second
    for (size_t i = 0; i < count; ++i) EXPECT_FALSE(run_sequence(whole_, i % 2));
    EXPECT_GT(training_.num_kept_bytes(), 0);
    stop_ = true;
    EXPECT_THROW(run({{1, &whole_, count % 2, count % 2 + 1}}), model::Stopped);
    stop_ = false;
    EXPECT_TRUE(training_.undo(1));
    EXPECT_EQ(training_.num_kept_bytes(), 0);
    EXPECT_EQ(gradients("a"), before);
  }
  ForwardBackward odd = pair_;
  odd.sequences.pop_back();
  odd.sequences.insert(odd.sequences.end(), 2, drawn(3, 4));
  const Operation mine = odd;
  for (const size_t s : {0, 1}) EXPECT_FALSE(run_sequence(mine, s));
  EXPECT_THROW(run_sequence(mine, 2), Error) << "three replies are no pairs";
  EXPECT_EQ(training_.num_kept_bytes(), 0);
  EXPECT_EQ(gradients("a"), before);
}

TEST_F(KeptPassesOnADecoder, ArePassesOfTheirOwnHoweverFewTokensHaveHoweverMuchCompany) {
  const Operation alone = pair("a", 3);
  const auto want = finish(alone);
  const Operation forward =
      Forward{.tenant = "b", .sequences = {drawn(5, 4)}, .loss = "cross_entropy"};
  const Operation theirs = pair("b", 200);
  const BatchOutcome outcome = run({{1, &alone, 0, 1}, {2, &theirs, 0, 1}, {3, &forward, 0, 1}});
  EXPECT_EQ(outcome.num_passes, 3) << "either is kept, and the forward has a pass";
  EXPECT_GT(training_.num_kept_bytes(), bytes_of(std::get<ForwardBackward>(alone)))
      << "of both operations";
  EXPECT_TRUE(training_.undo(2));
  EXPECT_EQ(training_.num_kept_bytes(), bytes_of(std::get<ForwardBackward>(alone)));
  EXPECT_FALSE(run_sequence(alone, 1));
  EXPECT_EQ(run({{1, &alone, 0, 1}}).num_passes, 0) << "its forward was counted when it ran";
  const std::pair got(run_sequence(alone, 1).value(), gradients("a"));
  EXPECT_EQ(got, want);
}

}  // namespace
}  // namespace twinkle::engine
