// Random schedules of several tenants' operations against a serial reference: each tenant alone,
// one operation at a time, on a fresh engine. And the replay of operations from their bytes.
#include <gtest/gtest.h>

#include <set>

#include "twinkle/engine/exactness/outcomes_for_test.h"

namespace twinkle::engine {
namespace {

constexpr int kTenants = 3, kSchedules = 200;

uint64_t draw(uint64_t& key, uint64_t below) { return (key = key_of(key, 1)) % below; }

std::vector<Sequence> some_sequences(uint64_t& key) {
  std::vector<Sequence> out;
  for (uint64_t n = 1 + draw(key, 3); n > 0; --n) {
    Sequence s = drawn(key, 1 + draw(key, 9), 41);
    // The first keeps its labels: a batch without any is refused when it is submitted.
    if (draw(key, 3) == 0 && !out.empty()) s.labels[draw(key, s.labels.size())] = -100;
    out.push_back(std::move(s));
  }
  return out;
}

std::string some_lora(uint64_t& key) {
  const std::string targets = draw(key, 2) ? R"("all-linear")" : R"(["q_proj", "down_proj"])";
  return R"({"r": )" + std::to_string(1 + draw(key, 9)) + R"(, "lora_dropout": )" +
         (draw(key, 3) ? "0.0" : "0.2") + R"(, "target_modules": )" + targets + "}";
}

ForwardBackward some_training(const std::string& tenant, uint64_t& key) {
  ForwardBackward op{.tenant = tenant, .sequences = some_sequences(key)};
  op.temperature = draw(key, 4) ? 1.0 : 0.7;
  if (draw(key, 3) == 0) {
    op.loss = "LinearLoss";
    for (Sequence& s : op.sequences)
      s.extras["grad"].assign(s.input_ids.size(), static_cast<float>(0.01 * draw(key, 9)) - 0.05f);
  }
  if (draw(key, 12) == 0) op.loss = "NoSuchLoss";
  return op;
}

Sample some_sampling(const std::string& tenant, uint64_t& key) {
  Sample op{.tenant = tenant};
  for (uint64_t n = 1 + draw(key, 2); n > 0; --n)
    op.prompts.push_back(drawn(key, 1 + draw(key, 5), 41).input_ids);
  op.params = {{.max_tokens = 1 + static_cast<int64_t>(draw(key, 4)),
                .seed = draw(key, 1000),
                .temperature = draw(key, 3) ? 1.0 : 0.0,
                .num_samples = 1 + static_cast<int64_t>(draw(key, 2))}};
  return op;
}

// Anything at all, whether it can succeed or not.
Operation some_operation(const std::string& tenant, const std::string& folder, uint64_t& key) {
  switch (draw(key, 16)) {
    case 0:
      return Create{.tenant = tenant, .lora_json = some_lora(key), .seed = draw(key, 100)};
    case 1:
      return Delete{tenant};
    case 2:
    case 3:
      return Forward{.tenant = tenant,
                     .sequences = some_sequences(key),
                     .disable_lora = draw(key, 3) == 0,
                     .entropy = draw(key, 2) == 0,
                     .train = draw(key, 2) == 0};
    case 4:
    case 5:
      return Step{.tenant = tenant,
                  .optimizer = draw(key, 4) ? "AdamW" : "SGD",
                  .options = R"({"lr": 0.03})",
                  .max_grad_norm = draw(key, 2) ? 0.0 : 0.3};
    case 6:
      return ClipGradNorm{.tenant = tenant, .max_grad_norm = 0.2};
    case 7:
      return draw(key, 2) ? Operation(ZeroGrad{tenant}) : Operation(Inspect{tenant});
    case 8:
    case 9:
      return some_sampling(tenant, key);
    case 10:
      return Save{tenant, folder + "/" + std::to_string(draw(key, 2)), draw(key, 3) > 0, "kept"};
    case 11:
      return Load{tenant, folder + "/" + std::to_string(draw(key, 2)), draw(key, 3) > 0};
    default:
      return some_training(tenant, key);
  }
}

struct Owned {
  size_t tenant;
  Operation operation;
};

// `folder`: where the tenants' checkpoints go; the operations are the same wherever that is.
std::vector<Owned> some_schedule(uint64_t seed, const std::string& folder) {
  uint64_t key = seed;
  std::vector<Owned> out;
  for (size_t t = 0; t < kTenants; ++t) {
    const std::string name = "t" + std::to_string(t);
    out.push_back({t, Create{.tenant = name, .lora_json = some_lora(key), .seed = seed}});
  }
  for (uint64_t n = 12 + draw(key, 24); n > 0; --n) {
    const size_t t = draw(key, kTenants);
    const std::string name = "t" + std::to_string(t);
    out.push_back({t, some_operation(name, folder + "/" + name, key)});
  }
  for (size_t t = 0; t < kTenants; ++t) out.push_back({t, Inspect{"t" + std::to_string(t)}});
  return out;
}

EngineOptions options_of(const model::TinyModel& model, uint64_t seed) {
  uint64_t key = key_of(seed, "options");
  return {.model = model.path(),
          .mixed_precision = draw(key, 2) ? "bf16" : "no",
          .token_budget = 1 + static_cast<int64_t>(draw(key, 40)),
          .kv_tokens = 512};
}

// A text with the run's own folder cut out of it.
std::string without(std::string text, const std::string& folder) {
  for (size_t at = text.find(folder); at != std::string::npos; at = text.find(folder))
    text.erase(at, folder.size());
  return text;
}

struct Outcomes {
  std::vector<std::vector<std::string>> of{kTenants};  // by tenant
  std::set<size_t> cancelled;                          // operations that then have no outcome
};

Outcomes at_once(const EngineOptions& options, uint64_t seed) {
  const ScratchDir scratch;
  const std::string folder = scratch.path().string();
  Engine engine(options);
  std::vector<Future> futures;
  std::vector<Operation> batch;
  Outcomes out;
  uint64_t key = key_of(seed, "arrival");
  const auto flush = [&] {
    for (Future& future : engine.submit(std::exchange(batch, {})))
      futures.push_back(std::move(future));
    const size_t which = draw(key, futures.size());
    if (draw(key, 4) == 0 && engine.cancel(futures[which].id)) out.cancelled.insert(which);
  };
  const auto schedule = some_schedule(seed, folder);
  for (const Owned& item : schedule) {
    batch.push_back(item.operation);
    if (draw(key, 3) == 0) flush();
  }
  if (!batch.empty()) flush();
  for (size_t i = 0; i < futures.size(); ++i) {
    const std::string text = without(outcome_of(futures[i]), folder);
    EXPECT_EQ(text == "engine: cancelled", out.cancelled.contains(i)) << text;
    if (!out.cancelled.contains(i)) out.of[schedule[i].tenant].push_back(text);
  }
  return out;
}

Outcomes one_by_one(const EngineOptions& options, uint64_t seed, const std::set<size_t>& left_out) {
  const ScratchDir scratch;
  const std::string folder = scratch.path().string();
  const auto schedule = some_schedule(seed, folder);
  Outcomes out;
  for (size_t t = 0; t < kTenants; ++t) {
    Engine engine(options);
    for (size_t i = 0; i < schedule.size(); ++i) {
      if (schedule[i].tenant != t || left_out.contains(i)) continue;
      Future future = engine.submit(schedule[i].operation);
      out.of[t].push_back(without(outcome_of(future), folder));
    }
  }
  return out;
}

TEST(Schedules, GiveEachTenantWhatASerialReferenceGivesIt) {
  const model::TinyModel model(smallest_config());
  int operations = 0, errors = 0, cancelled = 0;
  for (uint64_t seed = 1; seed <= kSchedules; ++seed) {
    const EngineOptions options = options_of(model, seed);
    const Outcomes got = at_once(options, seed);
    EngineOptions reference = options;
    reference.token_budget = 4096;
    const Outcomes want = one_by_one(reference, seed, got.cancelled);
    ASSERT_EQ(got.of, want.of) << "seed " << seed;
    cancelled += static_cast<int>(got.cancelled.size());
    for (const auto& tenant : want.of) {
      operations += static_cast<int>(tenant.size());
      for (const std::string& text : tenant) errors += text.starts_with("engine:") ? 1 : 0;
    }
  }
  // Most operations do something, and some are called back.
  EXPECT_GT(operations, 20 * kSchedules);
  EXPECT_LT(errors, operations / 2);
  EXPECT_GT(cancelled, kSchedules / 4);
}

TEST(Replay, OfEveryOperationsBytesFromASnapshotGivesTheSameState) {
  const model::TinyModel model(smallest_config());
  const ScratchDir scratch;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const std::string folder = (scratch / ("run" + std::to_string(seed))).string();
    const EngineOptions options = options_of(model, seed);
    uint64_t key = seed;
    std::vector<std::string> journal;
    std::vector<std::string> want, names;
    {
      Engine engine(options);
      for (int t = 0; t < kTenants; ++t) {
        const std::string name = names.emplace_back("t" + std::to_string(t));
        engine.run<Done>(Create{.tenant = name, .lora_json = some_lora(key), .seed = seed});
        for (int i = 0; i < 4; ++i) engine.submit(some_training(name, key)).wait();
        if (t > 0) engine.submit(Step{.tenant = name}).wait();
        if (t > 1) engine.submit(some_training(name, key)).wait();
        engine.run<SaveResult>(Save{name, folder + "/snapshot/" + name, true, ""});
      }
      std::vector<Future> futures;
      for (int i = 0; i < 40; ++i) {
        const std::string name = names[draw(key, kTenants)];
        const Operation op = some_operation(name, folder + "/" + name, key);
        if (std::holds_alternative<Save>(op)) continue;  // the replay would find what it wrote
        // After a Load with its optimizer, a tenant refuses another one.
        const auto* step = std::get_if<Step>(&op);
        if (step && step->optimizer != "AdamW") continue;
        journal.push_back(to_bytes(op));
        futures.push_back(engine.submit(op));
      }
      for (const std::string& name : names) futures.push_back(engine.submit(Inspect{name}));
      for (auto& future : futures) want.push_back(outcome_of(future));
    }
    Engine fresh(options);
    std::vector<std::string> got;
    for (const std::string& name : names) {
      const std::string snapshot = folder + "/snapshot/" + name;
      fresh.run<Done>(Create{.tenant = name, .directory = snapshot});
      fresh.run<LoadResult>(Load{name, snapshot, true});
    }
    std::vector<Future> futures;
    for (const std::string& bytes : journal) futures.push_back(fresh.submit(from_bytes(bytes)));
    for (const std::string& name : names) futures.push_back(fresh.submit(Inspect{name}));
    for (auto& future : futures) got.push_back(outcome_of(future));
    ASSERT_EQ(got, want) << "seed " << seed;
  }
}

}  // namespace
}  // namespace twinkle::engine
