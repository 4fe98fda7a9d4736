// Pages that the sampler keeps, and weights that change.
#include <gtest/gtest.h>

#include "twinkle/engine/operations_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

using Texts = std::vector<std::pair<std::vector<int32_t>, std::vector<float>>>;

// Four requests of one prompt, and one of another.
Texts sample_texts(Engine& engine, const std::string& tenant) {
  Sample op{.tenant = tenant};
  for (uint64_t i = 0; i < 5; ++i) {
    op.prompts.push_back(drawn(i == 4 ? 8 : 7, 140).input_ids);
    op.params.push_back({.max_tokens = 10, .seed = i, .ignore_eos = true});
  }
  Texts out;
  for (const auto& samples : engine.run<SampleResult>(op).completions) {
    out.emplace_back(samples[0].tokens, samples[0].logprobs);
  }
  return out;
}

void train_prefixed(Engine& engine, const std::string& tenant) {
  engine.run<ForwardResult>(work(tenant));
  engine.run<StepResult>(Step{.tenant = tenant, .options = R"({"lr": 0.05})"});
}

class Prefixes : public testing::TestWithParam<std::string> {};  // lora_json

INSTANTIATE_TEST_SUITE_P(OfAdaptersAndOfTheBase, Prefixes,
                         testing::Values(R"({"r": 4, "target_modules": "all-linear"})", ""),
                         [](const auto& info) { return info.param.empty() ? "full" : "lora"; });

TEST_P(Prefixes, AfterAStepTextIsThatOfTheNewWeightsAlone) {
  const model::TinyModel model;
  const EngineOptions options{.model = {.path = model.path(), .mixed_precision = "no"}};
  Engine engine(options);
  engine.run<Done>(Create{.tenant = "me", .lora_json = GetParam()});
  const Texts first = sample_texts(engine, "me");
  EXPECT_EQ(sample_texts(engine, "me"), first);
  for (int step = 0; step < 2; ++step) train_prefixed(engine, "me");
  const Texts after = sample_texts(engine, "me");
  EXPECT_NE(after, first);
  Engine fresh(options);
  fresh.run<Done>(Create{.tenant = "me", .lora_json = GetParam()});
  for (int step = 0; step < 2; ++step) train_prefixed(fresh, "me");
  EXPECT_EQ(sample_texts(fresh, "me"), after);
  // Without the tenant the base is what it was.
  engine.run<Done>(Delete{"me"});
  engine.run<Done>(Create{.tenant = "base", .frozen = true});
  const Texts base = sample_texts(engine, "base");
  Engine untouched(options);
  untouched.run<Done>(Create{.tenant = "base", .frozen = true});
  EXPECT_EQ(sample_texts(untouched, "base"), base);
}

TEST(PrefixCache, IsAnOptionThatChangesNoTextAndNothingIsSharedWithoutIt) {
  const model::TinyModel model;
  const auto shared = [&](bool on) {
    Engine engine({.model = {.path = model.path()}, .sampler = {.prefix_cache = on}});
    engine.run<Done>(Create{.tenant = "base", .frozen = true});
    const Sample op{.tenant = "base",
                    .prompts = {drawn(7, 200).input_ids},
                    .params = {{.max_tokens = 3, .temperature = 0}}};
    const auto first = engine.run<SampleResult>(op), second = engine.run<SampleResult>(op);
    EXPECT_EQ(first.completions[0][0].tokens, second.completions[0][0].tokens);
    return engine.sampling().num_shared_tokens;
  };
  EXPECT_GT(shared(true), 0);
  EXPECT_EQ(shared(false), 0);
}

TEST(PrefixCache, OfTheBaseModelIsItsTenantsUnlessItIsShared) {
  const model::TinyModel model;
  for (const bool share : {false, true}) {
    Engine engine({.model = {.path = model.path()}, .sampler = {.share_prefixes = share}});
    const auto num_shared = [&](const std::string& tenant) {
      const int64_t before = engine.sampling().num_shared_tokens;
      engine.run<SampleResult>(Sample{
          .tenant = tenant, .prompts = {drawn(7, 200).input_ids}, .params = {{.max_tokens = 1}}});
      return engine.sampling().num_shared_tokens - before;
    };
    for (const char* tenant : {"a", "b"})
      engine.run<Done>(Create{.tenant = tenant, .frozen = true});
    EXPECT_EQ(num_shared("a"), 0);
    EXPECT_EQ(num_shared("b"), share ? 192 : 0);
    EXPECT_EQ(num_shared("b"), 192);
  }
}

TEST(PromptScores, OfASampleAreTheForwards) {
  const model::TinyModel model;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "base", .frozen = true});
  const Example scored = drawn(7, 90);  // labels: the token that follows
  Sample op{.tenant = "base", .prompts = {scored.input_ids}, .params = {{.max_tokens = 0}}};
  op.params[0].top_prompt_logprobs = 3;
  const auto result = engine.run<SampleResult>(op);
  auto want =
      engine.run<ForwardResult>(Forward{.tenant = "base", .sequences = {scored}}).logps.at(0);
  want.pop_back();
  EXPECT_EQ(result.prompts.at(0).logprobs, want);
  EXPECT_EQ(result.prompts[0].top_logprobs.at(88).size(), 3u);
  op.params = {{.max_tokens = 0, .prompt_alt_tokens = 1}};
  for (int32_t t = 1; t < 90; ++t)
    op.params[0].prompt_targets.push_back({t, scored.input_ids[static_cast<size_t>(t)]});
  const auto others = engine.run<SampleResult>(op);
  EXPECT_EQ(others.prompts.at(0).target_logprobs, want);
  EXPECT_EQ(others.prompts[0].alt_tokens.size(), 89u);
}

}  // namespace
}  // namespace twinkle::engine
