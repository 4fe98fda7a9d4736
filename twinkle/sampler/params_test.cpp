#include "twinkle/sampler/params.h"

#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/base/error.h"

namespace twinkle::sampler {
namespace {

std::string refusal(const SamplingParams& params) {
  try {
    validate(params);
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kInvalid);
    return e.what();
  }
  return "no error";
}

TEST(Params, AcceptsTheDefaultsAndEveryLimit) {
  EXPECT_EQ(refusal({}), "no error");
  EXPECT_EQ(refusal({.max_tokens = 0,
                     .stop = std::vector<std::string>(65, std::string(1025, 'x')),
                     .stop_token_ids = {0},
                     .temperature = 0,
                     .top_k = 1,
                     .top_p = 1e-9,
                     .repetition_penalty = 1e-3,
                     .num_samples = 1,
                     .min_p = 1,
                     .top_logprobs = 128,
                     .top_prompt_logprobs = 128,
                     .prompt_logprobs_last_n = 1,
                     .prompt_alt_tokens = 128,
                     .prompt_targets = {{1, 0}, {1, 0}, {5, 7}}}),
            "no error");
}

TEST(Params, NamesFieldValueAndLimitOfWhatIsOutOfRange) {
  EXPECT_EQ(refusal({.max_tokens = -1}), "sampler: max_tokens is -1, it must be at least 0");
  EXPECT_EQ(refusal({.temperature = -0.5}),
            "sampler: temperature is -0.5, it must be 0 (greedy) or from 1e-30 to 1e30");
  EXPECT_EQ(refusal({.temperature = 1e-31}),
            "sampler: temperature is 1e-31, it must be 0 (greedy) or from 1e-30 to 1e30");
  EXPECT_EQ(refusal({.temperature = 1e300}),
            "sampler: temperature is 1e+300, it must be 0 (greedy) or from 1e-30 to 1e30");
  EXPECT_EQ(refusal({.temperature = INFINITY}),
            "sampler: temperature is inf, it must be 0 (greedy) or from 1e-30 to 1e30");
  EXPECT_EQ(refusal({.temperature = NAN}),
            "sampler: temperature is nan, it must be 0 (greedy) or from 1e-30 to 1e30");
  EXPECT_EQ(refusal({.top_k = 0}), "sampler: top_k is 0, it must be -1 (all) or at least 1");
  EXPECT_EQ(refusal({.top_p = 0}), "sampler: top_p is 0, it must be above 0 and at most 1");
  EXPECT_EQ(refusal({.top_p = 1.5}), "sampler: top_p is 1.5, it must be above 0 and at most 1");
  EXPECT_EQ(refusal({.min_p = -0.1}), "sampler: min_p is -0.1, it must be from 0 to 1");
  EXPECT_EQ(refusal({.min_p = 1.01}), "sampler: min_p is 1.01, it must be from 0 to 1");
  EXPECT_EQ(refusal({.min_p = NAN}), "sampler: min_p is nan, it must be from 0 to 1");
  EXPECT_EQ(refusal({.repetition_penalty = 0}),
            "sampler: repetition_penalty is 0, it must be from 1e-9 to 1e9");
  EXPECT_EQ(refusal({.repetition_penalty = 1e-300}),
            "sampler: repetition_penalty is 1e-300, it must be from 1e-9 to 1e9");
  EXPECT_EQ(refusal({.repetition_penalty = NAN}),
            "sampler: repetition_penalty is nan, it must be from 1e-9 to 1e9");
  EXPECT_EQ(refusal({.num_samples = 0}), "sampler: num_samples is 0, it must be from 1 to 65536");
  EXPECT_EQ(refusal({.num_samples = 65537}),
            "sampler: num_samples is 65537, it must be from 1 to 65536");
  EXPECT_EQ(refusal({.top_logprobs = 129}),
            "sampler: top_logprobs is 129, it must be from 0 to 128");
  EXPECT_EQ(refusal({.top_prompt_logprobs = -1}),
            "sampler: top_prompt_logprobs is -1, it must be from 0 to 128");
  EXPECT_EQ(refusal({.prompt_logprobs = true, .prompt_logprobs_last_n = -1}),
            "sampler: prompt_logprobs_last_n is -1, it must be 0 (all) or at least 1");
  EXPECT_EQ(refusal({.prompt_logprobs_last_n = 3}),
            "sampler: prompt_logprobs_last_n is 3, but neither prompt_logprobs nor "
            "top_prompt_logprobs is asked for; ask for one");
  EXPECT_EQ(refusal({.prompt_alt_tokens = 129}),
            "sampler: prompt_alt_tokens is 129, it must be from 0 to 128");
  const std::string fall = ", they must be at least ", never = " and 0: positions never fall";
  EXPECT_EQ(refusal({.prompt_targets = {{0, 5}}}),
            "sampler: prompt_targets[0] has position 0 and id 5" + fall + "1" + never);
  EXPECT_EQ(refusal({.prompt_targets = {{2, 5}, {3, -1}}}),
            "sampler: prompt_targets[1] has position 3 and id -1" + fall + "2" + never);
  EXPECT_EQ(refusal({.prompt_targets = {{2, 5}, {1, 5}}}),
            "sampler: prompt_targets[1] has position 1 and id 5" + fall + "2" + never);
  EXPECT_EQ(refusal({.stop = {"a", ""}}),
            "sampler: stop[1] is \"\", it must hold at least 1 character");
  EXPECT_EQ(refusal({.stop_token_ids = {3, -2}}),
            "sampler: stop_token_ids[1] is -2, it must be at least 0");
}

}  // namespace
}  // namespace twinkle::sampler
