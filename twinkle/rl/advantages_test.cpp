#include "twinkle/rl/advantages.h"

#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/base/error_for_test.h"

namespace twinkle::rl {
namespace {

using Doubles = std::vector<double>;

TEST(Advantages, AreDifferencesToTheMeanOfThePromptsRewardsByTheirDeviation) {
  const Doubles found = group_advantages(Doubles{1, 3, 8, 0, 0, 6}, {.num_generations = 3});
  const double first = std::sqrt(13.0), second = std::sqrt(12.0);  // -3 -1 4, and -2 -2 4
  const Doubles wanted{-3 / first, -1 / first, 4 / first, -2 / second, -2 / second, 4 / second};
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-7) << i;
  const Doubles plain =
      group_advantages(Doubles{1, 3, 8}, {.num_generations = 3, .scale = Scale::kNone});
  EXPECT_EQ(plain, (Doubles{-3, -1, 4}));
  const Doubles batch =
      group_advantages(Doubles{1, 3, 6, 8}, {.num_generations = 2, .scale = Scale::kBatch});
  const double deviation = std::sqrt(29.0 / 3);  // -3.5 -1.5 1.5 3.5
  for (size_t i = 0; i < batch.size(); ++i)
    EXPECT_NEAR(batch[i], (i % 2 == 0 ? -1 : 1) / deviation, 1e-7) << i;
}

TEST(Advantages, OfTheOthersAreDifferencesToTheMeanOfTheRest) {
  const GroupOptions options{
      .num_generations = 3, .scale = Scale::kNone, .baseline = Baseline::kOthers};
  EXPECT_EQ(group_advantages(Doubles{1, 3, 8}, options), (Doubles{-4.5, -1.5, 6}));
}

TEST(Advantages, OfEqualRewardsAreExactZeros) {
  for (const Scale scale : {Scale::kGroup, Scale::kBatch, Scale::kNone}) {
    EXPECT_EQ(group_advantages(Doubles(3, 0.1), {.num_generations = 3, .scale = scale}),
              Doubles(3));
    const Doubles alone = group_advantages(Doubles(3, 0.1), {.scale = scale});
    EXPECT_EQ(alone, scale == Scale::kGroup ? Doubles(3, 0.1) : Doubles(3));
  }
}

TEST(Advantages, OfOneReplyToAPromptAreItsRewardOrItsDifferenceToTheBatch) {
  EXPECT_EQ(group_advantages(Doubles{1, 5}, {}), (Doubles{1, 5}));
  EXPECT_EQ(group_advantages(Doubles{1, 5}, {.scale = Scale::kNone}), (Doubles{-2, 2}));
  EXPECT_TRUE(group_advantages({}, {.num_generations = 4}).empty());
  EXPECT_EQ(error_of([] { group_advantages(Doubles(4), {.num_generations = 3}); }),
            "advantage: 4 rewards are no multiple of num_generations, 3: every prompt needs that "
            "many");
}

TEST(Advantages, OfTokensAreTheDecayingSumOfTheDifferencesThatFollow) {
  const Doubles rewards{0.5, NAN, 0, 1}, values{0.2, NAN, -0.3, 0.4}, masks{1, 0, 1, 1};
  const Decay decay{.gamma = 0.9, .lambda = 0.8};
  Doubles found(4);
  token_advantages(rewards, values, masks, decay, found);
  const Doubles deltas{0.5 + 0.9 * -0.3 - 0.2, 0 + 0.9 * 0.4 + 0.3, 1 - 0.4};
  const double fall = 0.9 * 0.8;
  EXPECT_NEAR(found[0], deltas[0] + fall * deltas[1] + fall * fall * deltas[2], 1e-12);
  EXPECT_EQ(found[1], 0);
  EXPECT_NEAR(found[2], deltas[1] + fall * deltas[2], 1e-12);
  EXPECT_NEAR(found[3], deltas[2], 1e-12);
}

TEST(Advantages, AreWhitenedOverThePositionsThatCount) {
  Doubles values{1, 0, 3, 8};
  whiten(values, Doubles{1, 0, 1, 1});
  const double deviation = std::sqrt(26.0 / 3);  // -3 -1 4, the population's
  EXPECT_NEAR(values[0], -3 / deviation, 1e-7);
  EXPECT_EQ(values[1], 0);
  EXPECT_NEAR(values[3], 4 / deviation, 1e-7);
  whiten(values, Doubles(4));
  EXPECT_NEAR(values[0], -3 / deviation, 1e-7);
}

}  // namespace
}  // namespace twinkle::rl
