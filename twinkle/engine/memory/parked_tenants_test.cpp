// Parking seen from outside: the engine's numbers do not change, and a tenant whose file is lost
// harms nobody else.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <utility>

#include "twinkle/engine/engine.h"
#include "twinkle/engine/heap_shortage_for_test.h"
#include "twinkle/engine/memory/model_options_for_test.h"
#include "twinkle/engine/operations_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

class ParkedTenants : public testing::Test {
 protected:
  // An operation takes several batches of 16 tokens.
  std::unique_ptr<Engine> start(int64_t resident_bytes, int64_t token_budget = 16) {
    auto engine = std::make_unique<Engine>(
        EngineOptions{.model = {.path = model_.path()},
                      .scheduling = {.token_budget = token_budget},
                      .parking = {.resident_bytes = resident_bytes,
                                  .directory = resident_bytes ? folder().string() : ""}});
    for (int i = 0; i < 6; ++i) {
      engine->run<Done>(Create{.tenant = name(i),
                               .lora_json = R"({"r": 4, "target_modules": "all-linear"})",
                               .seed = static_cast<uint64_t>(i)});
    }
    return engine;
  }
  static std::string name(int i) { return {static_cast<char>('a' + i)}; }
  fs::path folder() const { return scratch_ / "park"; }

  const model::TinyModel model_;
  const ScratchDir scratch_{memory_folder()};
};

TEST_F(ParkedTenants, TrainingSamplingAndPublishingInTurnGiveTheBitsOfNoLimit) {
  const auto run = [&](Engine& engine) {
    std::vector<std::vector<float>> numbers;
    for (uint64_t round = 0; round < 3; ++round) {
      std::vector<Operation> all;
      for (int i = 0; i < 6; ++i) {
        all.push_back(work(name(i), round));
        all.push_back(Step{.tenant = name(i), .options = R"({"lr": 0.05})"});
        if (round == 1) all.push_back(Publish{name(i)});
        all.push_back(Sample{.tenant = name(i),
                             .prompts = {{3, 4}},
                             .params = {{.max_tokens = 5, .ignore_eos = true}},
                             .version = round == 2 ? 1 : 0});
      }
      for (auto& future : engine.submit(std::move(all))) {
        const Result result = future.get();
        if (const auto* f = std::get_if<ForwardResult>(&result)) numbers.push_back(f->logps[1]);
        if (const auto* s = std::get_if<SampleResult>(&result))
          numbers.push_back(s->completions[0][0].logprobs);
      }
    }
    std::vector<State> states;
    for (int i = 0; i < 6; ++i) states.push_back(state_of(engine, name(i)));
    return std::pair(numbers, states);
  };
  const auto free = start(0), tight = start(100'000);
  EXPECT_EQ(run(*tight), run(*free));
  EXPECT_GT(tight->parking().num_returns, 5);
  EXPECT_EQ(free->parking().num_returns, 0);
}

TEST_F(ParkedTenants, SamplesAloneSendIdleTenantsToTheirFilesAndBack) {
  const auto sampled = [](Engine& engine, int i) {
    const auto result = engine.run<SampleResult>(
        Sample{.tenant = name(i), .prompts = {{3, 4}}, .params = {{.max_tokens = 4}}});
    return result.completions[0][0].logprobs;
  };
  const auto free = start(0), tight = start(1);
  const int64_t before = tight->parking().num_returns;
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 6; ++i) EXPECT_EQ(sampled(*tight, i), sampled(*free, i)) << i;
  }
  EXPECT_GE(tight->parking().num_returns - before, 11);
  EXPECT_GE(tight->parking().num_parked, 4);
}

TEST_F(ParkedTenants, SamplesAndBatchesThatBeginTogetherTakeTurnsWithinTheLimit) {
  const int64_t adapter = start(int64_t{1} << 40)->parking().resident_bytes / 6;
  const int64_t limit = 5 * adapter;
  const auto tight = start(limit, 4096);
  std::atomic<int64_t> most = 0;
  const auto look = [&](const auto&) { most = std::max(+most, tight->parking().resident_bytes); };
  std::vector<Operation> samples, passes;
  for (int i = 0; i < 6; ++i) {
    samples.push_back(Sample{.tenant = name(i),
                             .prompts = {{3, 4}},
                             .params = {{.max_tokens = 40, .ignore_eos = true}}});
    passes.push_back(work(name(i)));
  }
  for (auto& future : tight->submit(std::move(samples), SampleHooks{.on_tokens = look}))
    future.get();
  EXPECT_GE(most, 2 * adapter) << "some at a time";
  EXPECT_LE(most, limit);
  for (auto& future : tight->submit(std::move(passes))) future.get();
  int64_t tenants = 0;
  for (const BatchStats& batch : tight->stats().last_batches) {
    EXPECT_LE(batch.num_tenants, 2) << "of an adapter and its gradients each";
    tenants = std::max(tenants, batch.num_tenants);
  }
  EXPECT_EQ(tenants, 2);
  EXPECT_LE(tight->parking().resident_bytes, limit);
}

// With its weights, gradients, optimizer and a published version.
TEST_F(ParkedTenants, OneThatIsParkedByNameComesBackBitForBitWithItsNextOperation) {
  const auto run = [this](bool parks) {
    Engine engine({.model = {.path = model_.path()}, .parking = {.directory = folder().string()}});
    engine.run<Done>(
        Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": "all-linear"})"});
    const auto park = [&] {
      if (!parks) return;
      for (int i = 0; i < 2; ++i) engine.run<Done>(Park{"a"});
      EXPECT_EQ(engine.parking().num_parked, 1);
      EXPECT_EQ(engine.parking().resident_bytes, 0);
    };
    std::vector<State> states;
    std::vector<std::vector<float>> sampled;
    for (uint64_t i = 0; i < 2; ++i) {
      park();
      engine.run<ForwardResult>(work("a", i));
      park();
      engine.run<StepResult>(Step{.tenant = "a", .options = R"({"lr": 0.05})"});
      if (i == 0) engine.run<PublishResult>(Publish{"a"});
      park();
      const auto drawn = engine.run<SampleResult>(
          Sample{.tenant = "a", .prompts = {{3, 4}}, .params = {{.max_tokens = 5}}, .version = 1});
      sampled.push_back(drawn.completions[0][0].logprobs);
      park();
      states.push_back(state_of(engine, "a"));
    }
    EXPECT_EQ(engine.parking().num_returns, parks ? 8 : 0);
    return std::pair(states, sampled);
  };
  EXPECT_EQ(run(true), run(false));
}

TEST_F(ParkedTenants, OneThatASampleReadsStaysAndIsParkedWhenItHasEnded) {
  Engine engine({.model = {.path = model_.path()}, .parking = {.directory = folder().string()}});
  engine.run<Done>(
      Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": "all-linear"})"});
  std::promise<void> begun, parked;
  const auto wait = [&, first = true](const auto&) mutable {
    if (!std::exchange(first, false)) return;
    begun.set_value();
    parked.get_future().wait();
  };
  Future sampled = engine.submit(
      Sample{
          .tenant = "a", .prompts = {{3, 4}}, .params = {{.max_tokens = 40, .ignore_eos = true}}},
      SampleHooks{.on_tokens = wait});
  begun.get_future().wait();
  Future in_vain = engine.submit(Park{"a"});
  parked.set_value();
  in_vain.get();
  const int64_t while_it_was_sampled = engine.parking().num_parked;
  sampled.get();
  engine.run<Done>(Park{"a"});
  EXPECT_EQ(engine.parking().num_parked, 1);
  EXPECT_EQ(while_it_was_sampled, 0);
}

TEST_F(ParkedTenants, WhatCannotBeParkedStaysAndNothingFails) {
  const auto parked_in = [this](const std::string& directory) {
    Engine engine({.model = {.path = model_.path()}, .parking = {.directory = directory}});
    engine.run<Done>(
        Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": "all-linear"})"});
    engine.run<Done>(Create{.tenant = "base", .frozen = true});
    if (!directory.empty()) fs::remove_all(folder());  // as a disk that refuses
    for (const char* name : {"a", "base"}) engine.run<Done>(Park{name});
    engine.run<ForwardResult>(work("a"));
    EXPECT_EQ(error_of([&] { engine.run<Done>(Park{"nobody"}); }), "engine: no tenant 'nobody'");
    return engine.parking();
  };
  const ParkingStats refused = parked_in(folder().string()), nowhere = parked_in("");
  EXPECT_EQ(refused.num_parked + nowhere.num_parked, 0);
  EXPECT_EQ(refused.num_failures, 1);
  EXPECT_EQ(nowhere.num_failures, 0);
}

TEST_F(ParkedTenants, ALostFileFailsItsTenantsOperationsAloneAndItCanBeDeleted) {
  const auto engine = start(1);
  EXPECT_EQ(engine->parking().num_parked, 5);
  for (const auto& entry : fs::recursive_directory_iterator(folder())) {
    if (entry.path().filename() == "1") fs::remove(entry.path());  // the first: tenant a
  }
  auto futures = engine->submit(std::vector<Operation>{work("a"), work("b")});
  EXPECT_NE(error_of([&] { futures[0].get(); }).find("engine: tenant 'a' is parked in"),
            std::string::npos);
  futures[1].get();
  engine->run<Done>(Delete{"a"});
  engine->run<Done>(
      Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": "all-linear"})"});
  engine->run<ForwardResult>(work("a"));
}

// At each of its last allocations in turn, where the tenant enters the books.
TEST_F(ParkedTenants, ACreateThatRunsOutOfMemoryLeavesNoTenant) {
  EngineOptions options = small_model(model_.path());
  options.parking = {int64_t{1} << 30, folder().string()};
  DecoderExecutor executor(options);
  const Operation create = Create{.tenant = "a tenant of a long name",
                                  .lora_json = R"({"r": 2, "target_modules": ["q_proj"]})"},
                  remove = Delete{"a tenant of a long name"};
  const auto make = [&] { executor.run(create, nullptr); };
  make();
  executor.run(remove, nullptr);
  const int64_t last = num_allocations(make);
  executor.run(remove, nullptr);
  int failed = 0;
  for (int64_t left = last - 20; left < last; ++left) {
    try {
      const HeapShortage shortage(left, 1);
      make();
    } catch (const std::bad_alloc&) {
      ++failed;
      EXPECT_NO_THROW(make()) << "allocation " << left;
    }
    executor.run(remove, nullptr);
    EXPECT_EQ(executor.parking().resident_bytes, 0);
  }
  EXPECT_GT(failed, 5);
}

TEST_F(ParkedTenants, ALimitWithoutAFolderIsRefused) {
  EXPECT_EQ(error_of([&] {
              Engine({.model = {.path = model_.path()}, .parking = {.resident_bytes = 5}});
            }),
            "engine: resident_bytes is 5 but park_directory is empty; name a folder for idle "
            "tenants");
}

}  // namespace
}  // namespace twinkle::engine
