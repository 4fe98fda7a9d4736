// For tests: lives of several tenants, drawn from a seed, whose operations may succeed or not; and
// two ways to run them, all at once and one by one, that must end alike.
#pragma once
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/engine/exactness/outcomes_for_test.h"

namespace twinkle::engine {

inline uint64_t draw(uint64_t& key, uint64_t below) { return (key = key_of(key, 1)) % below; }

inline std::vector<Sequence> some_sequences(uint64_t& key) {
  std::vector<Sequence> out;
  for (uint64_t n = 1 + draw(key, 3); n > 0; --n) {
    Sequence s = drawn(key, 1 + draw(key, 9), 41);
    // The first keeps its labels: a batch without any is refused when it is submitted.
    if (draw(key, 3) == 0 && !out.empty()) s.labels[draw(key, s.labels.size())] = -100;
    out.push_back(std::move(s));
  }
  return out;
}

inline std::string some_lora(uint64_t& key) {
  const std::string targets = draw(key, 2) ? R"("all-linear")" : R"(["q_proj", "down_proj"])";
  return R"({"r": )" + std::to_string(1 + draw(key, 9)) + R"(, "lora_dropout": )" +
         (draw(key, 3) ? "0.0" : "0.2") + R"(, "target_modules": )" + targets + "}";
}

inline ForwardBackward some_training(const std::string& tenant, uint64_t& key) {
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

inline Sample some_sampling(const std::string& tenant, uint64_t& key) {
  Sample op{.tenant = tenant};
  for (uint64_t n = 1 + draw(key, 2); n > 0; --n)
    op.prompts.push_back(drawn(key, 1 + draw(key, 5), 41).input_ids);
  op.params = {{.max_tokens = 1 + static_cast<int64_t>(draw(key, 4)),
                .seed = draw(key, 1000),
                .temperature = draw(key, 3) ? 1.0 : 0.0,
                .num_samples = 1 + static_cast<int64_t>(draw(key, 2))}};
  if (draw(key, 3) == 0) op.version = 1 + static_cast<int64_t>(draw(key, 3));
  return op;
}

// Anything at all, whether it can succeed or not.
inline Operation some_operation(const std::string& tenant, const std::string& folder,
                                uint64_t& key) {
  switch (draw(key, 18)) {
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
    case 12:
      return Publish{tenant};
    case 13:
      return Release{tenant, 1 + static_cast<int64_t>(draw(key, 3))};
    default:
      return some_training(tenant, key);
  }
}

struct Owned {
  size_t tenant;
  Operation operation;
};

// Lives of `tenants` tenants, t0, t1, ..., of `operations` drawn ones in all. `folder`: where their
// checkpoints go; the operations are the same wherever that is.
inline std::vector<Owned> some_schedule(uint64_t key, const std::string& folder, size_t tenants,
                                        uint64_t operations) {
  const uint64_t seed = key;
  std::vector<Owned> out;
  for (size_t t = 0; t < tenants; ++t) {
    const std::string name = "t" + std::to_string(t);
    out.push_back({t, Create{.tenant = name, .lora_json = some_lora(key), .seed = seed}});
  }
  for (; operations > 0; --operations) {
    const size_t t = draw(key, tenants);
    const std::string name = "t" + std::to_string(t);
    out.push_back({t, some_operation(name, folder + "/" + name, key)});
  }
  for (size_t t = 0; t < tenants; ++t) out.push_back({t, Inspect{"t" + std::to_string(t)}});
  return out;
}

// A text with the run's own folder cut out of it.
inline std::string without(std::string text, const std::string& folder) {
  for (size_t at = text.find(folder); at != std::string::npos; at = text.find(folder))
    text.erase(at, folder.size());
  return text;
}

struct Outcomes {
  std::vector<std::vector<std::string>> of;  // by tenant
  std::set<size_t> cancelled;                // operations that then have no outcome
};

// In drawn pieces, and some are called back.
inline Outcomes at_once(Engine& engine, const std::vector<Owned>& schedule,
                        const std::string& folder, uint64_t seed) {
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
  for (const Owned& item : schedule) {
    out.of.resize(std::max(out.of.size(), item.tenant + 1));
    batch.push_back(item.operation);
    if (draw(key, 3) == 0) flush();
  }
  if (!batch.empty()) flush();
  for (size_t i = 0; i < futures.size(); ++i) {
    const std::string text = without(outcome_of(futures[i]), folder);
    if (!out.cancelled.contains(i)) {
      out.of[schedule[i].tenant].push_back(text);
    } else if (text != "engine: cancelled") {
      out.of[schedule[i].tenant].push_back("called back, and yet " + text);
    }
  }
  return out;
}

// The operations of one tenant, each when the one before has ended.
inline std::vector<std::string> one_by_one(Engine& engine, size_t tenant,
                                           const std::vector<Owned>& schedule,
                                           const std::string& folder,
                                           const std::set<size_t>& left_out) {
  std::vector<std::string> out;
  for (size_t i = 0; i < schedule.size(); ++i) {
    if (schedule[i].tenant != tenant || left_out.contains(i)) continue;
    Future future = engine.submit(schedule[i].operation);
    out.push_back(without(outcome_of(future), folder));
  }
  return out;
}

}  // namespace twinkle::engine
