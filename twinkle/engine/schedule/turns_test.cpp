#include "twinkle/engine/schedule/turns.h"

#include <gtest/gtest.h>

#include "twinkle/base/random.h"

namespace twinkle::engine {
namespace {

TEST(Turns, TwoSidesThatAlwaysWaitGetTheirSharesOfTheTime) {
  for (const double share : {0.1, 0.5, 0.75}) {
    Turns turns(share);
    double training = 0, sampling = 0;
    for (uint64_t i = 0; i < 4000; ++i) {
      const Side side = turns.next(true, true);
      // A batch takes some forty times as long as one token of everyone.
      const double seconds = (side == Side::kTraining ? 2.0 : 0.05) * uniform_at(7, i);
      (side == Side::kTraining ? training : sampling) += seconds;
      turns.ran(side, seconds, true);
      // One turn may run over; nothing more is ever owed.
      ASSERT_NEAR(sampling * (1 - share), training * share, 2.0);
    }
    EXPECT_NEAR(sampling / (sampling + training), share, 0.01);
  }
}

TEST(Turns, WhoeverWaitsAloneRuns) {
  Turns turns(0.5);
  turns.ran(Side::kSampling, 10, true);
  EXPECT_EQ(turns.next(false, true), Side::kSampling);
  turns.ran(Side::kTraining, 30, true);
  EXPECT_EQ(turns.next(true, false), Side::kTraining);
}

TEST(Turns, AnIdleSideEarnsNothingAndLosesItsClaim) {
  Turns turns(0.5);
  turns.ran(Side::kTraining, 100, false);  // sampling was idle
  EXPECT_EQ(turns.next(true, true), Side::kSampling);
  turns.ran(Side::kSampling, 1, true);
  EXPECT_EQ(turns.next(true, true), Side::kTraining) << "no claim to the other 99 seconds";

  Turns other(0.5);
  other.ran(Side::kTraining, 100, true);
  other.ran(Side::kTraining, 1, false);  // sampling went away with a claim of 100 seconds
  other.ran(Side::kSampling, 1, true);
  EXPECT_EQ(other.next(true, true), Side::kTraining);
}

TEST(Turns, WhoRunsAlonePaysOffWhatItOwes) {
  Turns turns(0.5);
  turns.ran(Side::kTraining, 10, true);
  for (int i = 0; i < 4; ++i) turns.ran(Side::kSampling, 1, false);
  turns.ran(Side::kSampling, 5, true);
  EXPECT_EQ(turns.next(true, true), Side::kSampling) << "one second of its claim is left";
  turns.ran(Side::kSampling, 2, true);
  EXPECT_EQ(turns.next(true, true), Side::kTraining);
}

}  // namespace
}  // namespace twinkle::engine
