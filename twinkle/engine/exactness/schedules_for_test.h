// For tests: lives of several tenants, drawn from a seed, whose operations may succeed or not; and
// two ways to run them, all at once and one by one, that must end alike. Of the first, half of the
// Samples are listened to besides.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/engine/exactness/outcomes_for_test.h"
#include "twinkle/engine/stream/recording_listener_for_test.h"

namespace twinkle::engine {

// Drawn cases of a test: `few`, or, as `make soak` has it, TWINKLE_DRAWS times as many.
inline uint64_t num_drawn(uint64_t few) {
  const char* times = std::getenv("TWINKLE_DRAWS");
  return few * (times ? std::stoul(times) : 1);
}

inline uint64_t draw(uint64_t& key, uint64_t below) { return (key = key_of(key, 1)) % below; }

inline std::vector<Example> some_sequences(uint64_t& key) {
  std::vector<Example> out;
  for (uint64_t n = 1 + draw(key, 3); n > 0; --n) {
    Example s = drawn(key, 1 + draw(key, 9), 41);
    // The first keeps its labels: a batch without any is refused when it is submitted.
    if (draw(key, 3) == 0 && !out.empty()) s.labels[draw(key, s.labels.size())] = -100;
    if (draw(key, 4) == 0) s.weights.assign(s.labels.size(), draw(key, 2) ? 0.5f : 2.0f);
    out.push_back(std::move(s));
  }
  return out;
}

inline std::string some_lora(uint64_t& key) {
  const std::string targets = draw(key, 2) ? R"("all-linear")" : R"(["q_proj", "down_proj"])";
  return R"({"r": )" + std::to_string(1 + draw(key, 9)) + R"(, "lora_dropout": )" +
         (draw(key, 3) ? "0.0" : "0.2") + R"(, "target_modules": )" + targets + "}";
}

// An adapter, or, one in seven, the base model as it is.
inline Create some_tenant(const std::string& name, uint64_t seed, uint64_t& key) {
  Create out{.tenant = name, .seed = seed};
  out.frozen = draw(key, 7) == 0;
  if (!out.frozen) out.lora_json = some_lora(key);
  out.weight = draw(key, 3) ? 1.0 : 0.3;
  out.priority = draw(key, 4) ? 0 : 1;
  return out;
}

inline ForwardBackward some_training(const std::string& tenant, uint64_t& key) {
  ForwardBackward op{.tenant = tenant, .sequences = some_sequences(key)};
  op.temperature = draw(key, 4) ? 1.0 : 0.7;
  if (draw(key, 3) == 0) {
    op.loss = "LinearLoss";
    const bool entropy = draw(key, 2) == 0;
    for (Example& s : op.sequences) {
      const size_t length = s.input_ids.size();
      s.extras["grad"].assign(length, static_cast<float>(0.01 * draw(key, 9)) - 0.05f);
      if (entropy) s.extras["entropy_grad"].assign(length, 0.01f * draw(key, 3) - 0.01f);
      if (draw(key, 4)) continue;
      s.embedding_grad.assign(16, 0.1f * draw(key, 3) - 0.1f);  // smallest_config's width
      if (draw(key, 2)) s.labels.clear();
    }
    if (draw(key, 4) == 0) {
      for (Example& s : op.sequences) {
        s.labels.clear();
        s.logits_grad.assign(s.input_ids.size() * 41, 0.01f * draw(key, 5) - 0.02f);
      }
    }
  }
  op.logits = draw(key, 6) == 0;
  if (draw(key, 12) == 0) op.loss = "NoSuchLoss";
  return op;
}

// Some prompts begin with the same page, which the sampler computes once.
inline std::vector<int32_t> some_prompt(uint64_t& key) {
  std::vector<int32_t> out;
  if (draw(key, 3) == 0) out = drawn(7, 64, 41).input_ids;
  const auto rest = drawn(key, 1 + draw(key, 5), 41).input_ids;
  out.insert(out.end(), rest.begin(), rest.end());
  return out;
}

inline Sample some_sampling(const std::string& tenant, uint64_t& key) {
  Sample op{.tenant = tenant};
  for (uint64_t n = 1 + draw(key, 2); n > 0; --n) op.prompts.push_back(some_prompt(key));
  SamplingParams p{.max_tokens = 1 + static_cast<int64_t>(draw(key, 8)), .seed = draw(key, 1000)};
  p.temperature = draw(key, 3) ? 1.0 : 0.0;
  p.num_samples = 1 + static_cast<int64_t>(draw(key, 2));
  if (draw(key, 3) == 0) p.stop = {std::string(1, static_cast<char>('a' + draw(key, 26))), "bc"};
  if (draw(key, 3) == 0) p.stop_token_ids = {static_cast<int32_t>(draw(key, 41))};
  p.top_k = draw(key, 4) ? -1 : 5;
  p.top_p = draw(key, 4) ? 1.0 : 0.8;
  p.min_p = draw(key, 4) ? 0.0 : 0.05;
  p.repetition_penalty = draw(key, 4) ? 1.0 : 1.3;
  p.top_logprobs = static_cast<int64_t>(draw(key, 3));
  p.prompt_logprobs = draw(key, 3) == 0;
  p.top_prompt_logprobs = draw(key, 4) ? 0 : 2;
  uint64_t scores = key;  // so that the schedules have the same shares of all else
  if (p.prompt_logprobs && draw(scores, 2)) p.prompt_logprobs_last_n = 1;
  p.prompt_alt_tokens = draw(scores, 4) ? 0 : 2;
  const bool have_two =
      std::ranges::all_of(op.prompts, [](const auto& prompt) { return prompt.size() > 1; });
  if (have_two && draw(scores, 3) == 0)
    p.prompt_targets = {{1, static_cast<int32_t>(draw(scores, 41))}};
  op.params = {std::move(p)};
  if (draw(key, 2)) op.version = draw(key, 4) ? 1 : 2;
  return op;
}

// Anything at all, whether it can succeed or not.
inline Operation some_operation(const std::string& tenant, const std::string& folder,
                                uint64_t& key) {
  switch (draw(key, 21)) {
    case 0:
      return some_tenant(tenant, draw(key, 100), key);
    case 1:
      return Delete{tenant};
    case 2:
    case 3:
      return Forward{.tenant = tenant,
                     .sequences = some_sequences(key),
                     .disable_lora = draw(key, 3) == 0,
                     .entropy = draw(key, 2) == 0,
                     .train = draw(key, 2) == 0,
                     .logits = draw(key, 4) == 0,
                     .embedding = draw(key, 3) == 0};
    case 4:
    case 5:
      return Step{.tenant = tenant,
                  .optimizer = draw(key, 4) ? "AdamW" : "SGD",
                  .options = R"({"lr": 0.03})",
                  .max_grad_norm = draw(key, 2) ? 0.0 : 0.3};
    case 6:
      return ClipGradNorm{.tenant = tenant, .max_grad_norm = 0.2};
    case 7:
      return draw(key, 2) ? Operation(ZeroGrad{tenant})
                          : Operation(Inspect{tenant, draw(key, 3) == 0});
    case 8:
    case 9:
    case 10:
      return some_sampling(tenant, key);
    case 11:
      return Save{tenant, folder + "/" + std::to_string(draw(key, 2)), draw(key, 3) > 0, "kept"};
    case 12:
      return Load{tenant, folder + "/" + std::to_string(draw(key, 2)), draw(key, 3) > 0};
    case 13:
    case 14:
    case 15:
      return Publish{tenant};
    case 16:
      return Release{tenant, 1 + static_cast<int64_t>(draw(key, 2))};
    case 17:
      return Park{tenant};
    default:
      return some_training(tenant, key);
  }
}

struct Owned {
  size_t tenant;
  Operation operation;
};

// Lives of `tenants` tenants, t0, t1, ... behind `prefix`, of `operations` drawn ones in all; one
// alone trains all weights.
// `folder`: where their checkpoints go; the operations are the same wherever that is.
inline std::vector<Owned> some_schedule(uint64_t key, const std::string& folder, size_t tenants,
                                        uint64_t operations, const std::string& prefix = "") {
  const uint64_t seed = key;
  std::vector<Owned> out;
  const auto name_of = [&](size_t t) { return prefix + "t" + std::to_string(t); };
  for (size_t t = 0; t < tenants; ++t) {
    const std::string name = name_of(t);
    out.push_back({t, tenants == 1 ? Create{.tenant = name} : some_tenant(name, seed, key)});
  }
  for (; operations > 0; --operations) {
    const size_t t = draw(key, tenants);
    out.push_back({t, some_operation(name_of(t), folder + "/" + name_of(t), key)});
  }
  for (size_t t = 0; t < tenants; ++t) out.push_back({t, Inspect{name_of(t)}});
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
  size_t num_heard = 0;                      // tokens that listeners were told
  size_t num_pinned = 0;                     // Samples of a published version that succeeded
};

// Submits a schedule in drawn pieces, and calls some of it back.
class AtOnce {
 public:
  AtOnce(Engine& engine, const std::vector<Owned>& schedule, uint64_t seed)
      : engine_(engine), schedule_(schedule), key_(key_of(seed, "arrival")) {}

  Outcomes run(const std::string& folder) {
    submit();
    for (size_t i = 0; i < futures_.size(); ++i) {
      const std::string text = without(outcome(i), folder);
      auto& tenant = out_.of[schedule_[i].tenant];
      if (!out_.cancelled.contains(i)) {
        tenant.push_back(text);
      } else if (text != "engine: cancelled") {
        tenant.push_back("called back, and yet " + text);
      }
    }
    return std::move(out_);
  }

 private:
  void submit() {
    for (const Owned& item : schedule_) {
      out_.of.resize(std::max(out_.of.size(), item.tenant + 1));
      const bool listen = std::holds_alternative<Sample>(item.operation) && draw(key_, 2) == 0;
      if (listen) flush();
      batch_.push_back(item.operation);
      if (listen) {
        RecordingListener& listener =
            *(listeners_[futures_.size()] = std::make_unique<RecordingListener>());
        flush(listener.hooks());
      } else if (draw(key_, 3) == 0) {
        flush();
      }
    }
    flush();
  }
  void flush(const SampleHooks& hooks = {}) {
    if (batch_.empty()) return;
    for (Future& future : engine_.submit(std::exchange(batch_, {}), hooks))
      futures_.push_back(std::move(future));
    const size_t which = draw(key_, futures_.size());
    if (draw(key_, 4) == 0 && engine_.cancel(futures_[which].id)) out_.cancelled.insert(which);
  }
  // With what was heard otherwise.
  std::string outcome(size_t i) {
    std::string heard;
    const std::string text = outcome_of(futures_[i], [&](const Result& result) {
      const auto* sample = std::get_if<SampleResult>(&result);
      if (!sample) return;
      out_.num_pinned += std::get<Sample>(schedule_[i].operation).version > 0 ? 1 : 0;
      if (!listeners_.contains(i)) return;
      heard = listeners_[i]->difference(*sample);
      out_.num_heard += listeners_[i]->num_tokens();
    });
    return text + heard;
  }

  Engine& engine_;
  const std::vector<Owned>& schedule_;
  uint64_t key_;
  std::vector<Operation> batch_;
  std::vector<Future> futures_;
  std::map<size_t, std::unique_ptr<RecordingListener>> listeners_;
  Outcomes out_;
};

inline Outcomes at_once(Engine& engine, const std::vector<Owned>& schedule,
                        const std::string& folder, uint64_t seed) {
  return AtOnce(engine, schedule, seed).run(folder);
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
