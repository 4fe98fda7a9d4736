#include "twinkle/server/handlers/prompt_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "twinkle/base/error_for_test.h"

namespace twinkle::server {
namespace {

constexpr PromptSizes kSizes{.tokens = 4, .vocabulary = 100};

struct Scored {
  engine::SamplingParams params;
  PromptScoring scoring;
  explicit Scored(const Json& body) : scoring(body, kSizes, params) {}
  tinker::SampleResponse answer(const sampler::PromptScores& scores) const {
    tinker::SampleResponse out;
    scoring.answer(scores, out);
    return out;
  }
};

Json dense(const JsonArray& data, int64_t rows, int64_t k) {
  return {{"target_prompt_logprobs", {{"data", data}, {"dtype", "int64"}, {"shape", {rows, k}}}}};
}

TEST(PromptScoring, OfABodyThatAsksForNothingIsNothing) {
  const Scored read(Json{{"prompt_logprobs", nullptr}, {"target_prompt_logprobs", nullptr}});
  EXPECT_EQ(read.params, engine::SamplingParams());
  EXPECT_EQ(read.scoring.num_bytes(), 0);
  EXPECT_EQ(to_protobuf(read.answer({})), "");
}

TEST(PromptScoring, PlacesThatAreNotScoredAreNaNAndHaveNoLikeliest) {
  const Scored read(
      Json{{"prompt_logprobs", true}, {"topk_prompt_logprobs", 2}, {"prompt_logprobs_last_n", 2}});
  EXPECT_TRUE(read.params.prompt_logprobs);
  EXPECT_EQ(read.params.top_prompt_logprobs, 2);
  EXPECT_EQ(read.params.prompt_logprobs_last_n, 2);
  EXPECT_EQ(read.scoring.num_bytes(), 4 * (4 + 2 * 8));
  const auto out = read.answer(
      {.logprobs = {-1, -2}, .top_logprobs = {{{7, -0.5f}, {8, -0.75f}}, {{9, -0.25f}}}});
  ASSERT_EQ(out.prompt_logprobs->size(), 4u);
  EXPECT_TRUE(std::isnan((*out.prompt_logprobs)[0]) && std::isnan((*out.prompt_logprobs)[1]));
  EXPECT_EQ((*out.prompt_logprobs)[3], -2);
  EXPECT_EQ(out.prompt_top->k, 2);
  using Pairs = std::vector<std::pair<int32_t, float>>;
  EXPECT_EQ(out.prompt_top->rows,
            (std::vector<Pairs>{{}, {}, {{7, -0.5f}, {8, -0.75f}}, {{9, -0.25f}}}));
}

TEST(PromptScoring, DenseTargetsComeBackInTheirCells) {
  const Scored read(dense({5, -1, -1, -1, 0, 99}, 3, 2));
  EXPECT_EQ(read.params.prompt_targets,
            (std::vector<sampler::PromptTarget>{{1, 5}, {3, 0}, {3, 99}}));
  EXPECT_EQ(read.scoring.num_bytes(), 6 * 4);
  const auto out = read.answer({.target_logprobs = {-1, -2, -3}});
  EXPECT_EQ(*out.prompt_targets,
            (tinker::Tensor{.shape = {3, 2}, .values = std::vector<float>{-1, 0, 0, 0, -2, -3}}));
}

TEST(PromptScoring, SparseTargetsComeBackInTheirLayout) {
  Json body = dense({5, -1, 99}, 3, 1000);
  body.at("target_prompt_logprobs").as_object()["sparse_crow_indices"] = {0, 2, 2, 3};
  body.at("target_prompt_logprobs").as_object()["sparse_col_indices"] = {0, 7, 999};
  const Scored read(body);
  EXPECT_EQ(read.params.prompt_targets, (std::vector<sampler::PromptTarget>{{1, 5}, {3, 99}}));
  EXPECT_EQ(read.scoring.num_bytes(), 3 * 4 + (4 + 3) * 8);
  EXPECT_EQ(*read.answer({.target_logprobs = {-1, -2}}).prompt_targets,
            (tinker::Tensor{.shape = {3, 1000},
                            .values = std::vector<float>{-1, 0, -2},
                            .sparse = tinker::Csr{.crow = {0, 2, 2, 3}, .col = {0, 7, 999}}}));
}

TEST(PromptScoring, AlternativesAreARowForEachTokenBehindTheFirst) {
  const Scored read(Json{{"prompt_alt_tokens_k", 2}});
  EXPECT_EQ(read.params.prompt_alt_tokens, 2);
  EXPECT_EQ(read.scoring.num_bytes(), 4 * 2 * 12);
  const auto out =
      read.answer({.alt_tokens = {{1, -1}, {2, -2}, {3, -3}, {4, -4}, {5, -5}, {6, -6}}});
  EXPECT_EQ(out.prompt_alt_tokens->tokens,
            (tinker::Tensor{.shape = {3, 2}, .values = std::vector<int64_t>{1, 2, 3, 4, 5, 6}}));
  EXPECT_EQ(
      out.prompt_alt_tokens->logprobs,
      (tinker::Tensor{.shape = {3, 2}, .values = std::vector<float>{-1, -2, -3, -4, -5, -6}}));
}

std::string wrong_in(const Json& body) {
  return error_of([&] { Scored{body}; });
}

TEST(PromptScoring, NamesTheFieldAndTheLimitOfWhatItRefuses) {
  for (const std::string name : {"topk_prompt_logprobs", "prompt_alt_tokens_k"}) {
    for (const int64_t k : {-1, 129})
      EXPECT_EQ(wrong_in({{name, k}}),
                "server: " + name + " is " + std::to_string(k) + ", it must be from 0 to 128");
    EXPECT_NE(wrong_in({{name, 1.5}}).find(name), std::string::npos);
  }
  const std::string last = "server: prompt_logprobs_last_n is ";
  for (const int64_t n : {-1, 0, 4})
    EXPECT_EQ(
        wrong_in({{"prompt_logprobs", true}, {"prompt_logprobs_last_n", n}}),
        last + std::to_string(n) + ", it must be from 1 to 3, one less than the prompt's tokens");
  EXPECT_EQ(wrong_in({{"prompt_logprobs_last_n", 2}}),
            last + "2 without prompt_logprobs; ask for these, or leave it out");
}

TEST(PromptScoring, NamesWhatIsWrongWithTargets) {
  const std::string of = "server: target_prompt_logprobs";
  EXPECT_EQ(wrong_in({{"target_prompt_logprobs", 3}}),
            of + " must be an object of data, dtype and shape");
  const auto with = [](const char* name, Json value) {
    Json body = dense({5, 6, 7}, 3, 1);
    body.at("target_prompt_logprobs").as_object()[name] = std::move(value);
    return wrong_in(body);
  };
  EXPECT_EQ(with("dtype", "float32"), of + ".dtype is 'float32', it must be 'int64'");
  EXPECT_EQ(with("data", nullptr), of + ".data must be an array of integers");
  EXPECT_EQ(with("data", {5, 1.5, 7}), of + ".data has 1.5E0, it must hold integers");
  EXPECT_EQ(with("data", {5, 6}), of + ".data has 2 values, its shape is [3, 1]");
  EXPECT_EQ(with("data", {5, 6, 100}),
            of + ".data has 100, it must be -1, for no token, or below the vocabulary's 100");
  EXPECT_EQ(with("data", {5, -2, 7}),
            of + ".data has -2, it must be -1, for no token, or below the vocabulary's 100");
  EXPECT_EQ(with("data", {-1, -1, -1}), of + " names no token; leave it out");
  for (const Json& shape : {Json{4, 1}, Json{3, 0}, Json{3}, Json{3, 1, 1}})
    EXPECT_EQ(with("shape", shape),
              of + ".shape must be [3, K], a row for each token of the prompt but the first");
  EXPECT_EQ(with("shape", {3, std::numeric_limits<int64_t>::max()}),
            of + ".data has 3 values, its shape is [3, 9223372036854775807]");
  EXPECT_EQ(with("sparse_crow_indices", {0, 1, 2, 3}),
            of + ".sparse_col_indices must be an array of integers");
  const auto sparse = [&](JsonArray crow, JsonArray col) {
    Json body = dense({5, 6, 7}, 3, 4);
    body.at("target_prompt_logprobs").as_object()["sparse_crow_indices"] = std::move(crow);
    body.at("target_prompt_logprobs").as_object()["sparse_col_indices"] = std::move(col);
    return wrong_in(body);
  };
  EXPECT_EQ(sparse({0, 1, 2, 3}, {0, 0}), of + ".data has 3 values, its sparse_col_indices 2");
  EXPECT_EQ(sparse({0, 3}, {0, 1, 2}), of + ".sparse_crow_indices has 2 numbers, it must have 4");
  EXPECT_EQ(sparse({0, 1, 2, 2}, {0, 1, 2}),
            of + ".sparse_crow_indices is from 0 to 2, it must be from 0 to 3");
  EXPECT_EQ(sparse({0, 2, 1, 3}, {0, 1, 2}), of + ".sparse_crow_indices[2] is 1 behind 2");
  EXPECT_EQ(sparse({0, 3, 3, 3}, {0, 1, 1}),
            of + ".sparse_col_indices[2] is 1, it must be above 1 and below 4");
  EXPECT_EQ(sparse({0, 1, 2, 3}, {0, 1, 4}),
            of + ".sparse_col_indices[2] is 4, it must be above -1 and below 4");
}

TEST(PromptScoring, OfAPromptOfOneTokenHasNoTargets) {
  const auto text = [](int64_t tokens) {
    engine::SamplingParams params;
    const Json body = dense({}, 0, 1);
    return error_of([&] { PromptScoring(body, {.tokens = tokens, .vocabulary = 9}, params); });
  };
  for (const int64_t tokens : {0, 1})
    EXPECT_EQ(text(tokens),
              "server: target_prompt_logprobs.data has 0 values, its shape is [0, 1]");
}

}  // namespace
}  // namespace twinkle::server
