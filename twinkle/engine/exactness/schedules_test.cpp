// Random schedules of several tenants' operations against a serial reference: each tenant alone,
// one operation at a time, on a fresh engine. And the replay of operations from their bytes.
#include <gtest/gtest.h>

#include <set>

#include "twinkle/engine/exactness/schedules_for_test.h"

namespace twinkle::engine {
namespace {

// Every eighth schedule has a tenant that trains all weights, which excludes others.
size_t tenants_of(uint64_t seed) { return seed % 8 == 0 ? 1 : 3; }

EngineOptions options_of(const model::TinyModel& model, uint64_t seed) {
  uint64_t key = key_of(seed, "options");
  return {.model = {.path = model.path(), .mixed_precision = draw(key, 2) ? "bf16" : "no"},
          .scheduling = {.token_budget = 1 + static_cast<int64_t>(draw(key, 40))},
          .sampler = {.kv_tokens = 512,
                      .max_sequences = 1 + static_cast<int64_t>(draw(key, 6)),
                      .prefill_tokens = 1 + static_cast<int64_t>(draw(key, 12))}};
}

std::vector<Owned> schedule_of(uint64_t seed, const std::string& folder) {
  return some_schedule(seed, folder, tenants_of(seed), 12 + key_of(seed, "length") % 24);
}

Outcomes all_at_once(EngineOptions options, uint64_t seed) {
  const ScratchDir scratch, parked;
  options.parking.directory = parked.path().string();  // a Park parks; in the reference it does not
  const std::string folder = scratch.path().string();
  Engine engine(options, in_letters);
  return at_once(engine, schedule_of(seed, folder), folder, seed);
}

std::vector<std::vector<std::string>> each_alone(const EngineOptions& options, uint64_t seed,
                                                 const std::set<size_t>& left_out) {
  const ScratchDir scratch;
  const std::string folder = scratch.path().string();
  std::vector<std::vector<std::string>> out;
  for (size_t t = 0; t < tenants_of(seed); ++t) {
    Engine engine(options, in_letters);
    out.push_back(one_by_one(engine, t, schedule_of(seed, folder), folder, left_out));
  }
  return out;
}

TEST(Schedules, GiveEachTenantWhatASerialReferenceGivesIt) {
  const model::TinyModel model(smallest_config());
  const uint64_t num_schedules = num_drawn(80);
  uint64_t operations = 0, errors = 0, cancelled = 0, heard = 0, pinned = 0;
  for (uint64_t seed = 1; seed <= num_schedules; ++seed) {
    const EngineOptions options = options_of(model, seed);
    const Outcomes got = all_at_once(options, seed);
    EngineOptions reference = options;
    reference.scheduling.token_budget = 4096;
    reference.sampler.max_sequences = 64;
    reference.sampler.prefill_tokens = 512;
    const auto want = each_alone(reference, seed, got.cancelled);
    ASSERT_EQ(got.of, want) << "seed " << seed;
    cancelled += got.cancelled.size();
    heard += got.num_heard;
    pinned += got.num_pinned;
    for (const auto& tenant : want) {
      operations += tenant.size();
      for (const std::string& text : tenant) errors += text.starts_with("engine:") ? 1 : 0;
    }
  }
  // Most operations do something, some are called back, some Samples are listened to.
  EXPECT_GT(operations, 20 * num_schedules);
  EXPECT_LT(errors, operations / 2);
  EXPECT_GT(cancelled, num_schedules / 4);
  EXPECT_GT(heard, 3 * num_schedules);
  EXPECT_GT(pinned, num_schedules / 8);
}

// The first of three has no adapter; one alone trains all weights.
Create created(uint64_t seed, size_t t, const std::string& lora) {
  const bool several = tenants_of(seed) > 1;
  return {.tenant = "t" + std::to_string(t),
          .lora_json = several && t > 0 ? lora : "",
          .seed = seed,
          .frozen = several && t == 0};
}

TEST(Replay, OfEveryOperationsBytesFromASnapshotGivesTheSameState) {
  const model::TinyModel model(smallest_config());
  const ScratchDir scratch;
  std::map<size_t, int> kinds;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::string folder = (scratch / ("run" + std::to_string(seed))).string();
    const EngineOptions options = options_of(model, seed);
    uint64_t key = seed;
    std::vector<std::string> journal;
    std::vector<std::string> want, names;
    {
      Engine engine(options, in_letters);
      for (size_t t = 0; t < tenants_of(seed); ++t) {
        const std::string name = names.emplace_back("t" + std::to_string(t));
        engine.run<Done>(created(seed, t, some_lora(key)));
        if (created(seed, t, "").frozen) continue;
        for (int i = 0; i < 4; ++i) engine.submit(some_training(name, key)).wait();
        if (seed % 4 == 0 || t > 1) engine.submit(Step{.tenant = name}).wait();
        if (t != 1) engine.submit(some_training(name, key)).wait();
        engine.run<SaveResult>(Save{name, folder + "/snapshot/" + name, true, ""});
      }
      std::vector<Future> futures;
      for (int i = 0; i < 40; ++i) {
        const std::string name = names[draw(key, names.size())];
        const Operation op = some_operation(name, folder + "/" + name, key);
        ++kinds[op.index()];
        journal.push_back(to_bytes(op));
        futures.push_back(engine.submit(op));
      }
      for (const std::string& name : names) futures.push_back(engine.submit(Inspect{name}));
      for (auto& future : futures) want.push_back(outcome_of(future));
    }
    std::vector<std::map<std::string, std::string>> saved;
    for (const std::string& name : names) {
      std::filesystem::create_directories(folder + "/" + name);
      saved.push_back(files_of(folder + "/" + name));
      std::filesystem::remove_all(folder + "/" + name);  // as it was at the snapshot
    }
    Engine fresh(options, in_letters);
    std::vector<std::string> got;
    for (size_t t = 0; t < names.size(); ++t) {
      const std::string snapshot = folder + "/snapshot/" + names[t];
      Create create = created(seed, t, "");
      if (!create.frozen) create.seed = 0;  // comes with the snapshot
      if (!create.frozen && tenants_of(seed) > 1) create.directory = snapshot;
      fresh.run<Done>(create);
      if (!create.frozen) fresh.run<LoadResult>(Load{names[t], snapshot, true, /*exact=*/true});
    }
    std::vector<Future> futures;
    for (const std::string& bytes : journal) futures.push_back(fresh.submit(from_bytes(bytes)));
    for (const std::string& name : names) futures.push_back(fresh.submit(Inspect{name}));
    for (auto& future : futures) got.push_back(outcome_of(future));
    ASSERT_EQ(got, want) << "seed " << seed;
    for (size_t t = 0; t < names.size(); ++t) {
      std::filesystem::create_directories(folder + "/" + names[t]);
      ASSERT_EQ(files_of(folder + "/" + names[t]), saved[t]) << "seed " << seed;
    }
  }
  // Every kind, but ReadWeights and ReplaceWeights, which name what one process holds.
  EXPECT_EQ(kinds.size(), std::variant_size_v<Operation> - 2);
}

TEST(Replay, AnotherOptimizerAfterALoadStartsAfreshAsItDoesInARunThatWasNotCut) {
  const model::TinyModel model(smallest_config());
  const ScratchDir scratch;
  const std::string snapshot = (scratch / "snapshot").string();
  const EngineOptions options{.model = {.path = model.path()}, .sampler = {.kv_tokens = 64}};
  const Create create{.tenant = "a", .lora_json = R"({"r": 3, "target_modules": "all-linear"})"};
  const auto train = [](uint64_t seed) {
    return ForwardBackward{.tenant = "a", .sequences = {drawn(seed, 7, 41)}};
  };
  const auto finish = [&](Engine& engine) {
    engine.run<StepResult>(
        Step{.tenant = "a", .optimizer = "SGD", .options = R"({"momentum": 0.9})"});
    engine.run<ForwardResult>(train(3));
    engine.run<StepResult>(Step{.tenant = "a", .options = R"({"lr": 0.01})"});
    return state_of(engine, "a");
  };
  Engine whole(options), cut(options);
  whole.run<Done>(create);
  cut.run<Done>(create);
  whole.run<ForwardResult>(train(1));
  whole.run<StepResult>(Step{.tenant = "a"});
  whole.run<ForwardResult>(train(2));
  whole.run<SaveResult>(Save{"a", snapshot, true, ""});
  cut.run<LoadResult>(Load{"a", snapshot, true, /*exact=*/true});
  EXPECT_EQ(finish(cut), finish(whole));
}

}  // namespace
}  // namespace twinkle::engine
