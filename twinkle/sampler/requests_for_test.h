// For tests of the sampler: requests of many kinds, and what the trainer makes of their tokens.
#pragma once
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/model/decoder.h"
#include "twinkle/nn/head/head.h"
#include "twinkle/sampler/sampler.h"

namespace twinkle::sampler {

inline std::vector<int32_t> some_prompt(int64_t length, unsigned seed, int32_t vocab = 97) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& id : prompt) id = static_cast<int32_t>(random() % vocab);
  return prompt;
}

// Log-probabilities of tokens [first, end), as the trainer computes them.
inline std::vector<float> trainer_logprobs(model::Decoder& decoder,
                                           const std::vector<int32_t>& tokens, int64_t first,
                                           float temperature) {
  model::Batch batch;
  const int64_t length[] = {std::ssize(tokens) - 1};
  batch.input_ids = at::tensor(std::vector<int64_t>(tokens.begin(), tokens.end() - 1), at::kLong);
  batch.rows = nn::pack(length);
  batch.rows.position_ids.add_(decoder.spec().rope.first_row(length[0]));
  nn::Targets targets;
  for (int64_t t = first; t < std::ssize(tokens); ++t) {
    targets.rows.push_back(t - 1);
    targets.ids.push_back(tokens[t]);
    targets.temperature.push_back(temperature);
  }
  return nn::head_forward(decoder.forward(batch), decoder.head(), targets, {batch.rows}).logprobs;
}

inline std::vector<int32_t> joined(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  std::vector<int32_t> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

inline void expect_same(const Completion& a, const Completion& b, const std::string& what) {
  EXPECT_EQ(a.tokens, b.tokens) << what;
  EXPECT_EQ(a.logprobs, b.logprobs) << what;  // bit for bit
  EXPECT_EQ(a.stop_reason, b.stop_reason) << what;
}

// The completions of requests that run together, by request and sample. Throws the error of one
// that fails; nothing stays queued.
inline std::vector<std::vector<Completion>> generate(Sampler& sampler,
                                                     std::span<const Request> requests,
                                                     const Decode& decode = {}) {
  struct Added {
    Sampler& sampler;
    std::vector<int64_t> tickets{};
    ~Added() {
      sampler.cancel(tickets);
      sampler.take_outcomes();
      sampler.take_events();
    }
  } added{sampler};
  for (const Request& request : requests) added.tickets.push_back(sampler.add(request, decode));
  while (sampler.step()) {
  }
  std::vector<std::vector<Completion>> out(requests.size());
  for (Outcome& outcome : sampler.take_outcomes()) {
    require(outcome.error.empty(), Code::kInvalid, outcome.error);
    out[static_cast<size_t>(outcome.ticket - added.tickets[0])] = std::move(outcome.completions);
  }
  return out;
}
inline std::vector<std::vector<Completion>> generate(Sampler&& sampler,
                                                     std::span<const Request> requests) {
  return generate(sampler, requests);
}

// Requests of many lengths and parameters, some with several samples.
inline std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  const int64_t lengths[] = {1, 5, 63, 64, 65, 130, 17, 200, 33};
  for (unsigned i = 0; i < 9; ++i) {
    SamplingParams params{.max_tokens = 10 + 9 * i, .seed = i};
    if (i % 3 == 0) params.temperature = 0;
    if (i % 3 == 1) params.top_k = 20;
    if (i % 3 == 2) params.top_p = 0.9;
    if (i == 4) params.repetition_penalty = 1.2;
    if (i % 4 == 1) params.num_samples = 3;
    requests.push_back({some_prompt(lengths[i], i), params});
  }
  return requests;
}

// Requests whose prompts begin alike in many ways.
inline std::vector<Request> related_requests(uint64_t version) {
  std::vector<Request> requests;
  const std::vector<int32_t> text = some_prompt(300, 1), other = some_prompt(300, 2);
  const int64_t common[] = {300, 130, 64, 128, 200, 90, 130, 0, 130, 65};
  for (unsigned i = 0; i < 10; ++i) {
    SamplingParams params{.max_tokens = 5 + 7 * i, .seed = i};
    params.temperature = i % 3 == 0 ? 0 : 0.8;
    if (i % 4 == 1) params.num_samples = 3;
    std::vector<int32_t> prompt(text.begin(), text.begin() + common[i]);
    if (i % 2 == 1) prompt.insert(prompt.end(), other.begin(), other.begin() + 20);
    requests.push_back({std::move(prompt), params, -1, version});
  }
  return requests;
}

inline std::vector<Request> without_version(std::vector<Request> requests) {
  for (Request& request : requests) request.version = 0;
  return requests;
}

inline void expect_all_same(const std::vector<std::vector<Completion>>& got,
                            const std::vector<std::vector<Completion>>& want,
                            const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size());
    for (size_t s = 0; s < got[i].size(); ++s) {
      expect_same(got[i][s], want[i][s], what + ", request " + std::to_string(i));
    }
  }
}

}  // namespace twinkle::sampler
