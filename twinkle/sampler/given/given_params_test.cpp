#include "twinkle/sampler/given/given_params.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/base/error.h"

namespace twinkle::sampler {
namespace {

TEST(GivenParams, AreTheSamplersWhereNothingIsGiven) {
  const SamplingParams want{.max_tokens = kDefaultMaxTokens, .logprobs = false};
  EXPECT_EQ(params_of({}, 5000), want);
  EXPECT_EQ(params_of({}, 7).max_tokens, 7) << "the room";
  EXPECT_EQ(params_of({.max_tokens = 9}, 7).max_tokens, 9) << "what was asked for is not cut";
  EXPECT_EQ(params_of({.max_tokens = 0}, 7).max_tokens, 0);
}

TEST(GivenParams, AskForLogProbabilitiesByOneNumber) {
  for (const int64_t asked : {0, 1, 2, 128}) {
    const SamplingParams own = params_of({.logprobs = asked}, 1);
    EXPECT_TRUE(own.logprobs && !own.prompt_logprobs);
    EXPECT_EQ(own.top_logprobs, asked > 1 ? asked : 0);
    const SamplingParams prompts = params_of({.prompt_logprobs = asked}, 1);
    EXPECT_TRUE(prompts.prompt_logprobs && !prompts.logprobs);
    EXPECT_EQ(prompts.top_prompt_logprobs, asked > 1 ? asked : 0);
  }
}

TEST(GivenParams, TakeTwoNumbersForAllOfTheVocabulary) {
  EXPECT_EQ(params_of({.top_k = 0}, 1).top_k, -1);
  EXPECT_EQ(params_of({.top_k = -1}, 1).top_k, -1);
  EXPECT_EQ(params_of({.top_k = 3}, 1).top_k, 3);
}

// Every limit that the table tells is one that the sampler takes; beyond it the table refuses.
TEST(GivenParams, HaveNoLimitThatTheSamplerRefuses) {
  for (const bool most : {false, true}) {
    GivenParams given;
    for (const AnyOption& one : options_of(given)) {
      const double limit = most ? one.limits.most : one.limits.least;
      if (one.kind == OptionKind::kFlag || limit == kAnyBits) continue;
      const bool is_integer = one.kind == OptionKind::kInteger;
      const double beyond = limit + (most ? 1 : -1) * std::max(1.0, 1e-3 * limit);
      one.set(is_integer ? Json(static_cast<int64_t>(limit)) : Json(limit));
      EXPECT_FALSE(one.allows(is_integer ? Json(static_cast<int64_t>(beyond)) : Json(beyond)))
          << one.name;
    }
    if (given.top_p == 0) given.top_p = 1e-9;
    EXPECT_NO_THROW(validate(params_of(given, 1))) << most;
  }
}

}  // namespace
}  // namespace twinkle::sampler
