#include "twinkle/sampler/schedule/scored.h"

#include <gtest/gtest.h>

#include <cmath>

namespace twinkle::sampler {
namespace {

struct Asking {
  Job job;

  explicit Asking(const SamplingParams& params) {
    job.request = {.prompt = {1, 2, 3, 4, 5, 6, 7, 8}, .params = params};
    job.num_scored = first_scored(job.request);
  }
  // The tokens to score of a step that computes tokens [computed, next).
  Scored scored(int64_t computed, int64_t next) {
    Sequence s(&job, 0);
    s.computed = computed;
    s.next = next;
    return Scored::of(s);
  }
};

TEST(Scored, BeginsWithTheFirstTokenThatGetsAnyScore) {
  const auto first = [](const SamplingParams& params) { return Asking(params).job.num_scored; };
  EXPECT_EQ(first({}), 8);
  EXPECT_EQ(first({.prompt_logprobs = true}), 1);
  EXPECT_EQ(first({.prompt_logprobs = true, .prompt_logprobs_last_n = 3}), 5);
  EXPECT_EQ(first({.top_prompt_logprobs = 1, .prompt_logprobs_last_n = 7}), 1);
  EXPECT_EQ(first({.prompt_targets = {{6, 1}, {7, 1}}}), 6);
  EXPECT_EQ(
      first({.prompt_logprobs = true, .prompt_logprobs_last_n = 1, .prompt_targets = {{6, 1}}}), 6);
  EXPECT_EQ(first({.prompt_logprobs = true, .prompt_logprobs_last_n = 1, .prompt_alt_tokens = 2}),
            1);
}

TEST(Scored, EachTokenIsScoredOnceAndTheLastStateScoresNone) {
  Asking asking({.prompt_logprobs = true, .prompt_logprobs_last_n = 4});  // tokens 4 to 7 alone
  EXPECT_LE(asking.scored(0, 3).count, 0);
  Scored first = asking.scored(2, 5);
  EXPECT_EQ(first.begin, 3);
  EXPECT_EQ(first.count, 2);
  first.found.logprobs = {-4, -5};
  EXPECT_EQ(first.keep(), -1);
  Scored rest = asking.scored(0, 8);  // its pages were lost
  EXPECT_EQ(rest.begin, 5);
  EXPECT_EQ(rest.count, 2);
  rest.found.logprobs = {-6, -7};
  EXPECT_EQ(rest.keep(), -1);
  EXPECT_EQ(asking.job.prompt.logprobs, (std::vector<float>{-4, -5, -6, -7}));
  EXPECT_LE(asking.scored(0, 8).count, 0);
}

TEST(Scored, WhatNobodyAskedForIsNotKept) {
  Asking asking({.prompt_logprobs = true,
                 .top_prompt_logprobs = 1,
                 .prompt_logprobs_last_n = 6,
                 .prompt_alt_tokens = 1});
  Scored of = asking.scored(0, 3);
  ASSERT_EQ(of.count, 3);
  of.found = {.logprobs = {-1, -2, -3},
              .top_logprobs = {{{1, 0}}, {{2, 0}}, {{3, 0}}},
              .alt_tokens = {{7, -1}, {8, -1}, {9, -1}},
              .target_logprobs = {-9}};
  EXPECT_EQ(of.keep(), -1);
  EXPECT_EQ(asking.job.prompt, (PromptScores{.logprobs = {-2, -3},
                                             .top_logprobs = {{{2, 0}}, {{3, 0}}},
                                             .alt_tokens = {{7, -1}, {8, -1}, {9, -1}},
                                             .target_logprobs = {-9}}));
}

TEST(Scored, OfNaNNothingIsKept) {
  Asking asking({.prompt_targets = {{2, 1}}});
  Scored of = asking.scored(0, 8);
  of.found = {.logprobs = {-1, -2, NAN, NAN, -5, -6}, .target_logprobs = {-1}};
  EXPECT_EQ(of.keep(), 4);
  EXPECT_EQ(asking.job.prompt, PromptScores{});
  EXPECT_EQ(asking.job.num_scored, 2);
}

}  // namespace
}  // namespace twinkle::sampler
