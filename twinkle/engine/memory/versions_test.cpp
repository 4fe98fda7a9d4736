// Published versions of an adapter, and Samples that run while their tenant trains on.
#include <gtest/gtest.h>

#include <future>

#include "twinkle/engine/engine.h"
#include "twinkle/engine/operations_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

class Versions : public testing::TestWithParam<std::string> {
 protected:
  Versions() {
    engine_.run<Done>(Create{
        .tenant = "me", .lora_json = R"({"r": 4, "target_modules": "all-linear"})", .seed = 3});
    train(1);  // B starts at zero, where every adapter is alike
  }

  void train(uint64_t seed) {
    engine_.run<ForwardResult>(work("me", seed));
    engine_.run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.05})"});
  }

  Sample sample(int64_t version, int64_t max_tokens = 12) const {
    return {.tenant = "me",
            .prompts = {{5, 6, 7}},
            .params = {{.max_tokens = max_tokens, .seed = 4, .ignore_eos = true}},
            .version = version};
  }
  static std::vector<float> logprobs(const Result& result) {
    return std::get<SampleResult>(result).completions[0][0].logprobs;
  }
  std::vector<float> sampled(int64_t version) {
    return logprobs(engine_.submit(sample(version)).get());
  }
  int64_t publish() { return engine_.run<PublishResult>(Publish{"me"}).version; }

  const model::TinyModel model_;
  Engine engine_{{.model = {.path = model_.path(), .mixed_precision = GetParam()}}};
};

TEST_P(Versions, APublishedOneGivesTheSameBitsWhileTrainingGoesOn) {
  std::vector<std::vector<float>> want;
  for (int64_t version = 1; version <= 3; ++version) {
    want.push_back(sampled(0));
    EXPECT_EQ(publish(), version);
    train(static_cast<uint64_t>(10 * version));
  }
  EXPECT_NE(want[0], want[1]);
  EXPECT_NE(sampled(0), want[2]);
  for (int64_t version = 3; version >= 1; --version)
    EXPECT_EQ(sampled(version), want[static_cast<size_t>(version - 1)]) << version;
}

TEST_P(Versions, ASampleKeepsTheWeightsOfItsPlaceInTheOrderThoughAStepOvertakesIt) {
  const auto alone = [&] {
    Engine other({.model = {.path = model_.path(), .mixed_precision = GetParam()}});
    other.run<Done>(Create{
        .tenant = "me", .lora_json = R"({"r": 4, "target_modules": "all-linear"})", .seed = 3});
    other.run<ForwardResult>(work("me", 1));
    other.run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.05})"});
    return logprobs(other.submit(sample(0, 200)).get());
  }();
  // Both listeners are called by the engine's thread; the first holds it until all are queued.
  std::promise<void> queued;
  size_t seen = 0, seen_after_step = 0;
  Future first = engine_.submit(sample(0, 200), {.on_tokens = [&](auto events) {
                                  if (seen == 0) queued.get_future().wait();
                                  seen += events.size();
                                }});
  Future learnt = engine_.submit(work("me", 2));
  Future step = engine_.submit(Step{.tenant = "me", .options = R"({"lr": 0.05})"});
  Future second = engine_.submit(sample(0, 4), {.on_tokens = [&](auto) {
                                   if (seen_after_step == 0) seen_after_step = seen;
                                 }});
  queued.set_value();
  step.get();
  const auto after = logprobs(second.get());
  EXPECT_EQ(logprobs(first.get()), alone);
  EXPECT_GT(seen_after_step, 0U);
  EXPECT_LT(seen_after_step, 200U) << "training does not wait for sampling";
  EXPECT_NE(after, std::vector<float>(alone.begin(), alone.begin() + 4)) << "the new weights";
}

TEST_P(Versions, ALongPromptIsReadWithTheWeightsOfItsOwnVersionThoughAnotherReadItBefore) {
  Sample op = sample(0);
  for (int32_t t = 0; t < 150; ++t) op.prompts[0].push_back(t % 131);
  const auto run = [&](Engine& engine, int64_t version) {
    op.version = version;
    return logprobs(engine.submit(op).get());
  };
  const auto first = run(engine_, 0);
  publish();
  train(7);
  const auto second = run(engine_, 0);
  EXPECT_EQ(run(engine_, 1), first);
  Engine fresh({.model = {.path = model_.path(), .mixed_precision = GetParam()}});
  fresh.run<Done>(Create{
      .tenant = "me", .lora_json = R"({"r": 4, "target_modules": "all-linear"})", .seed = 3});
  for (const uint64_t seed : {1, 7}) {
    fresh.run<ForwardResult>(work("me", seed));
    fresh.run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.05})"});
  }
  EXPECT_EQ(run(fresh, 0), second);
  EXPECT_NE(first, second);
}

TEST_P(Versions, APublishedOneIsSavedAsItWasAndReadByAnotherTenant) {
  const auto want = sampled(0);
  publish();
  train(8);
  const ScratchDir dir;
  const std::string folder = (dir.path() / "v1").string();
  engine_.run<SaveResult>(Save{.tenant = "me", .directory = folder, .version = 1});
  engine_.run<Done>(Create{.tenant = "reader", .directory = folder});
  Sample op = sample(0);
  op.tenant = "reader";
  EXPECT_EQ(logprobs(engine_.submit(op).get()), want);
  EXPECT_NE(sampled(0), want);
  for (const Save& wrong :
       {Save{.tenant = "me", .directory = folder, .version = 2},
        Save{.tenant = "me", .directory = folder, .version = -1},
        Save{.tenant = "me", .directory = folder, .optimizer = true, .version = 1}})
    EXPECT_THROW(engine_.run<SaveResult>(wrong), Error);
}

TEST_P(Versions, ADeletedTenantsRunningSampleEndsWithItsWeights) {
  const auto want = sampled(0);
  auto futures = engine_.submit(std::vector<Operation>{sample(0), Delete{"me"}});
  futures[1].get();
  EXPECT_EQ(logprobs(futures[0].get()), want);
}

TEST_P(Versions, AReleasedOneIsGoneButForWhoRunsWithItAndUnknownOnesAreRefused) {
  const auto want = sampled(0);
  EXPECT_EQ(publish(), 1);
  EXPECT_EQ(publish(), 2) << "a number of its own, though nothing changed";
  train(5);
  auto futures = engine_.submit(std::vector<Operation>{sample(1), Release{"me", 1}});
  futures[1].get();
  EXPECT_EQ(logprobs(futures[0].get()), want);
  const std::string gone = "engine: tenant 'me' keeps no version 1; it has published 2 and keeps 1";
  EXPECT_EQ(error_of([&] { sampled(1); }), gone);
  EXPECT_EQ(error_of([&] { engine_.run<Done>(Release{"me", 1}); }), gone);
  EXPECT_EQ(error_of([&] { engine_.run<Done>(Release{"me", 0}); }),
            "engine: release: version is 0, it must be at least 1");
  EXPECT_EQ(error_of([&] { sampled(-1); }),
            "engine: sample: version is -1, it must be at least 1, or 0 for the present weights");
  EXPECT_EQ(sampled(2), want);
}

TEST_P(Versions, OnlyAdaptersHaveThem) {
  engine_.run<Done>(Create{.tenant = "base", .frozen = true});
  EXPECT_EQ(error_of([&] { engine_.run<PublishResult>(Publish{"base"}); }),
            "engine: publish: tenant 'base' has no adapter; only adapters have versions");
}

TEST_P(Versions, NumbersGoOnAfterACheckpointSoThatAReplayFromItGivesTheSame) {
  const ScratchDir scratch;
  const std::string directory = (scratch / "checkpoint").string();
  publish();
  publish();
  engine_.run<SaveResult>(Save{"me", directory, true});
  Engine second({.model = {.path = model_.path(), .mixed_precision = GetParam()}});
  second.run<Done>(Create{.tenant = "me", .directory = directory});
  second.run<LoadResult>(Load{"me", directory, true});
  EXPECT_EQ(second.run<PublishResult>(Publish{"me"}).version, 3);
  EXPECT_EQ(publish(), 3);
  second.run<LoadResult>(Load{"me", directory, true});
  EXPECT_EQ(second.run<PublishResult>(Publish{"me"}).version, 4) << "no number comes twice";
}

INSTANTIATE_TEST_SUITE_P(Precisions, Versions, testing::Values("bf16", "no"));

}  // namespace
}  // namespace twinkle::engine
