#include "twinkle/engine/schedule/time_share.h"

#include <gtest/gtest.h>

#include "twinkle/base/random.h"

namespace twinkle::engine {
namespace {

TEST(TimeShare, TwoSidesThatAlwaysWaitGetTheirSharesOfTheTime) {
  for (const double share : {0.1, 0.5, 0.75}) {
    TimeShare time_share(share);
    double training = 0, sampling = 0;
    for (uint64_t i = 0; i < 4000; ++i) {
      const Side side = time_share.next(true, true);
      // A batch takes some forty times as long as one token of everyone.
      const double seconds = (side == Side::kTraining ? 2.0 : 0.05) * uniform_at(7, i);
      (side == Side::kTraining ? training : sampling) += seconds;
      time_share.ran(side, seconds, true);
      // One turn may run over; nothing more is ever owed.
      ASSERT_NEAR(sampling * (1 - share), training * share, 2.0);
    }
    EXPECT_NEAR(sampling / (sampling + training), share, 0.01);
  }
}

TEST(TimeShare, WhoeverWaitsAloneRuns) {
  TimeShare time_share(0.5);
  time_share.ran(Side::kSampling, 10, true);
  EXPECT_EQ(time_share.next(false, true), Side::kSampling);
  time_share.ran(Side::kTraining, 30, true);
  EXPECT_EQ(time_share.next(true, false), Side::kTraining);
}

TEST(TimeShare, AnIdleSideEarnsNothingAndLosesItsClaim) {
  TimeShare time_share(0.5);
  time_share.ran(Side::kTraining, 100, false);  // sampling was idle
  EXPECT_EQ(time_share.next(true, true), Side::kSampling);
  time_share.ran(Side::kSampling, 1, true);
  EXPECT_EQ(time_share.next(true, true), Side::kTraining) << "no claim to the other 99 seconds";

  TimeShare other(0.5);
  other.ran(Side::kTraining, 100, true);
  other.ran(Side::kTraining, 1, false);  // sampling went away with a claim of 100 seconds
  other.ran(Side::kSampling, 1, true);
  EXPECT_EQ(other.next(true, true), Side::kTraining);
}

TEST(TimeShare, WhoRunsAlonePaysOffWhatItOwes) {
  TimeShare time_share(0.5);
  time_share.ran(Side::kTraining, 10, true);
  for (int i = 0; i < 4; ++i) time_share.ran(Side::kSampling, 1, false);
  time_share.ran(Side::kSampling, 5, true);
  EXPECT_EQ(time_share.next(true, true), Side::kSampling) << "one second of its claim is left";
  time_share.ran(Side::kSampling, 2, true);
  EXPECT_EQ(time_share.next(true, true), Side::kTraining);
}

}  // namespace
}  // namespace twinkle::engine
