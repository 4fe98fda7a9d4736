// Who runs when, seen through the engine: sharing, cancelling and interleaving change no bit.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>

#include "twinkle/engine/execute/check.h"
#include "twinkle/engine/operations_for_test.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

using model::TinyModel;

constexpr const char* kOfScheduling =
    R"({"r": 4, "lora_dropout": 0.1, "target_modules": ["q_proj", "down_proj"]})";

ForwardBackward many(const std::string& tenant, uint64_t seed, size_t num_sequences) {
  ForwardBackward out{.tenant = tenant};
  for (size_t s = 0; s < num_sequences; ++s)
    out.sequences.push_back(drawn(key_of(seed, s), 3 + (s * 7) % 20));
  return out;
}

Sample prompts(const std::string& tenant, size_t count, int64_t max_tokens) {
  Sample out{.tenant = tenant, .params = {{.max_tokens = max_tokens, .ignore_eos = true}}};
  for (size_t i = 0; i < count; ++i) out.prompts.push_back(drawn(i + 50, 4 + i).input_ids);
  return out;
}

std::vector<std::vector<std::vector<int32_t>>> tokens_of(const SampleResult& result) {
  std::vector<std::vector<std::vector<int32_t>>> out;
  for (const auto& samples : result.completions) {
    out.emplace_back();
    for (const Completion& c : samples) out.back().push_back(c.tokens);
  }
  return out;
}

class Scheduling : public testing::Test {
 protected:
  std::unique_ptr<Engine> open(int64_t budget = 64) {
    auto engine = std::make_unique<Engine>(
        EngineOptions{.model = {.path = model_.path(), .mixed_precision = "no"},
                      .scheduling = {.token_budget = budget}});
    for (const char* name : {"a", "b"})
      engine->run<Done>(Create{.tenant = name, .lora_json = kOfScheduling, .seed = 5});
    return engine;
  }
  static void wait_for_passes(Engine& engine, int64_t count) {
    while (engine.num_passes() < count) std::this_thread::yield();
  }
  const TinyModel model_;
};

TEST_F(Scheduling, AnOperationOfAHundredBudgetsDoesNotDelayASmallTenant) {
  auto engine = open();
  const ForwardBackward huge = many("a", 1, 520);
  Future slow = engine->submit(huge);
  wait_for_passes(*engine, 2);
  const int64_t before = engine->num_passes();
  engine->run<ForwardResult>(work("b"));
  EXPECT_LE(engine->num_passes() - before, 20);
  const auto result = std::get<ForwardResult>(slow.get());
  EXPECT_GE(engine->num_passes(), 100);
  EXPECT_EQ(engine->stats().tenants.at("b").num_tokens, 15);

  auto alone = open(100000);
  EXPECT_EQ(result.logps, alone->run<ForwardResult>(huge).logps);
  EXPECT_EQ(state_of(*engine, "a"), state_of(*alone, "a"));
}

TEST_F(Scheduling, ACancelledOperationLeavesItsTenantAndItsNeighboursAsWithoutIt) {
  for (const bool accumulated : {false, true}) {
    auto engine = open(), reference = open();
    for (Engine* e : {engine.get(), reference.get()}) {
      if (accumulated) e->run<ForwardResult>(work("a", 7));
    }
    const int64_t passes = engine->num_passes();
    auto futures = engine->submit(std::vector<Operation>{many("a", 1, 5000), many("a", 2, 9),
                                                         work("a", 3), many("b", 4, 30)});
    EXPECT_TRUE(engine->cancel(futures[1].id)) << "queued";
    wait_for_passes(*engine, passes + 3);
    EXPECT_TRUE(engine->cancel(futures[0].id)) << "runs";
    for (size_t i : {0, 1}) EXPECT_EQ(error_of([&] { futures[i].get(); }), "engine: cancelled");
    const auto kept = std::get<ForwardResult>(futures[2].get());
    EXPECT_FALSE(engine->cancel(futures[2].id)) << "has ended";
    futures[3].get();

    EXPECT_EQ(reference->run<ForwardResult>(work("a", 3)).logps, kept.logps);
    reference->run<ForwardResult>(many("b", 4, 30));
    for (const char* tenant : {"a", "b"})
      EXPECT_EQ(state_of(*engine, tenant), state_of(*reference, tenant)) << tenant << accumulated;
  }
}

TEST_F(Scheduling, SamplingGoesOnWhileTrainingRunsAndTheOtherWayRound) {
  auto alone = open();
  const auto want = tokens_of(alone->run<SampleResult>(prompts("a", 5, 12)));
  alone->run<ForwardResult>(many("b", 1, 60));
  alone->run<StepResult>(Step{.tenant = "b", .options = R"({"lr": 0.01})"});

  auto engine = open();
  // Training that would last, and a sample that would last, beside a short one of the other kind.
  Future training = engine->submit(many("a", 2, 20000));
  wait_for_passes(*engine, 2);
  EXPECT_EQ(tokens_of(engine->run<SampleResult>(prompts("b", 5, 12))).size(), 5u);
  EXPECT_EQ(tokens_of(engine->run<SampleResult>(prompts("b", 5, 12))).size(), 5u);
  EXPECT_TRUE(engine->cancel(training.id));

  Future sampling = engine->submit(prompts("a", 60, 200));
  const auto trained = engine->run<ForwardResult>(many("b", 1, 60));
  engine->run<StepResult>(Step{.tenant = "b", .options = R"({"lr": 0.01})"});
  EXPECT_TRUE(engine->cancel(sampling.id)) << "it runs still";
  EXPECT_EQ(error_of([&] { sampling.get(); }), "engine: cancelled");
  EXPECT_EQ(state_of(*engine, "b"), state_of(*alone, "b"));

  auto both = engine->submit(
      std::vector<Operation>{prompts("a", 5, 12), many("b", 3, 40), prompts("a", 2, 3)});
  EXPECT_EQ(tokens_of(std::get<SampleResult>(both[0].get())), want);
  both[1].get();
  both[2].get();
  EXPECT_GT(engine->stats().tenants.at("a").num_sampled, 0);
}

TEST_F(Scheduling, ASampleKeepsTheWeightsThatItBeganWith) {
  auto alone = open();
  const auto want = tokens_of(alone->run<SampleResult>(prompts("a", 3, 30)));
  auto engine = open();
  auto futures = engine->submit(std::vector<Operation>{
      prompts("a", 3, 30), work("a"), Step{.tenant = "a", .options = R"({"lr": 0.1})"},
      prompts("a", 3, 30), Delete{"a"}});
  EXPECT_EQ(tokens_of(std::get<SampleResult>(futures[0].get())), want);
  EXPECT_NE(tokens_of(std::get<SampleResult>(futures[3].get())), want);
  futures[4].get();
}

TEST_F(Scheduling, FullParameterStepsWaitForSamplesThatReadTheBase) {
  Engine engine({.model = {.path = model_.path(), .mixed_precision = "no"},
                 .scheduling = {.token_budget = 64}});
  Engine alone({.model = {.path = model_.path(), .mixed_precision = "no"}});
  alone.run<Done>(Create{.tenant = "base", .frozen = true});
  const auto text = tokens_of(alone.run<SampleResult>(prompts("base", 2, 20)));
  const Step step{.tenant = "full", .options = R"({"lr": 0.1})"};
  // Work of its own, and of a tenant that has gone meanwhile.
  auto futures = engine.submit(std::vector<Operation>{Create{.tenant = "base", .frozen = true},
                                                      prompts("base", 2, 20), Delete{"base"}});
  futures[2].get();
  auto more =
      engine.submit(std::vector<Operation>{Create{.tenant = "full"}, work("full"),
                                           prompts("full", 2, 20), step, prompts("full", 2, 20)});
  EXPECT_EQ(tokens_of(std::get<SampleResult>(futures[1].get())), text);
  EXPECT_EQ(tokens_of(std::get<SampleResult>(more[2].get())), text);
  EXPECT_EQ(std::get<StepResult>(more[3].get()).step, 1);
  EXPECT_NE(tokens_of(std::get<SampleResult>(more[4].get())), text);
}

TEST_F(Scheduling, OperationsThatShareAPassGetTheBitsThatTheyGetOneByOne) {
  const auto run = [&](bool together, bool poisoned) {
    auto engine = open(4096);
    std::vector<Operation> operations;
    for (uint64_t i = 0; i < 5; ++i) {
      for (const char* tenant : {"a", "b"}) operations.push_back(work(tenant, 10 * i));
    }
    if (poisoned) {
      ForwardBackward bad = work("a", 77);
      bad.sequences[1].weights.assign(9, std::nanf(""));
      for (const ptrdiff_t at : {4, 0}) operations.insert(operations.begin() + at, bad);
    }
    std::vector<std::vector<std::vector<float>>> logps;
    const auto get = [&](Future future) {
      try {
        logps.push_back(std::get<ForwardResult>(future.get()).logps);
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find("not finite"), std::string::npos);
      }
    };
    const int64_t before = engine->num_passes();
    if (together) {
      for (Future& future : engine->submit(std::move(operations))) get(std::move(future));
      EXPECT_LE(engine->num_passes() - before, poisoned ? 3 : 1);
    } else {
      for (Operation& operation : operations) get(engine->submit(std::move(operation)));
    }
    EXPECT_EQ(logps.size(), 10u);
    return std::tuple(logps, state_of(*engine, "a"), state_of(*engine, "b"));
  };
  const auto want = run(false, false);
  EXPECT_EQ(run(true, false), want);
  EXPECT_EQ(run(false, true), want);
  EXPECT_EQ(run(true, true), want);
}

TEST_F(Scheduling, LogitsOfForwardsThatWaitCountAsIfTheyWereThere) {
  Engine engine({.model = {.path = model_.path(), .mixed_precision = "no"},
                 .scheduling = {.max_queued_bytes = 40'000}});
  engine.run<Done>(Create{.tenant = "base", .frozen = true});
  const Forward forward{.tenant = "base", .sequences = {drawn(1, 20)}, .logits = true};
  std::vector<Future> kept;  // 20 x 131 x 4 bytes each
  for (int i = 0; i < 3; ++i) kept.push_back(engine.submit(forward));
  const auto once_more = [&] { kept.push_back(engine.submit(forward)); };
  EXPECT_TRUE(error_of(once_more).starts_with("engine: tenant 'base' holds 3"));
  for (Future& future : kept) future.wait();
  EXPECT_TRUE(error_of(once_more).starts_with("engine: tenant 'base' holds 3"));
  kept[0].get();
  once_more();
  EXPECT_GT(engine.stats().queued_bytes, 30'000);
  kept.clear();
  while (engine.stats().queued_bytes > 0) std::this_thread::yield();
}

TEST_F(Scheduling, CopiesOfThePromptAndStreamedTokensCountBeforeASampleBegins) {
  const model::DecoderSpec spec = model::read_spec(model::tiny_config());
  const auto bytes = [&](size_t length, bool streams) {
    Sample sample{.tenant = "a", .prompts = {drawn(1, length).input_ids}, .params = {{}}};
    sample.params[0].max_tokens = 10;
    sample.params[0].num_samples = 50;
    return max_result_bytes(sample, spec, streams);
  };
  EXPECT_GE(bytes(20, true) - bytes(20, false), 50 * 10 * int64_t{sizeof(TokenEvent)});
  EXPECT_GE(bytes(40, false) - bytes(20, false), 50 * 20 * 4);
}

TEST_F(Scheduling, AWeightOutsideItsRangeIsNamed) {
  auto engine = open();
  for (const double weight : {0.0, -1.0, 1001.0, std::nan("")}) {
    const std::string text = error_of([&] {
      engine->run<Done>(Create{.tenant = "new", .lora_json = kOfScheduling, .weight = weight});
    });
    EXPECT_TRUE(text.starts_with("engine: weight of tenant 'new' is ")) << text;
    EXPECT_TRUE(text.ends_with("it must be from 0.001 to 1000")) << text;
  }
}

}  // namespace
}  // namespace twinkle::engine
