// For tests: engines that sample after a sync, over links whose ranks are threads.
#pragma once
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "twinkle/engine/operations_for_test.h"
#include "twinkle/mesh/thread_comm.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/sync/link.h"

namespace twinkle::sync {

using engine::Create;
using engine::Done;
using engine::Engine;
using engine::EngineOptions;

inline constexpr const char* kLora =
    R"({"r": 4, "lora_alpha": 12, "target_modules": "all-linear"})";

inline EngineOptions options_of(const model::TinyModel& model, const char* precision = "bf16") {
  return {.model = {.path = model.path(), .mixed_precision = precision}};
}

// A model of other weights.
inline void write_other(const ScratchDir& dir) {
  const JsonObject config = model::tiny_config();
  model::write_tiny(dir.path(), config, model::tiny_weights(config, 2));
}

using Texts = std::vector<std::pair<std::vector<int32_t>, std::vector<float>>>;

inline Texts sampled(Engine& engine, const std::string& tenant) {
  engine::Sample op{.tenant = tenant};
  for (uint64_t i = 0; i < 3; ++i) {
    op.prompts.push_back(engine::drawn(i == 2 ? 8 : 7, 70).input_ids);
    op.params.push_back({.max_tokens = 8, .seed = i, .ignore_eos = true});
  }
  Texts out;
  for (const auto& samples : engine.run<engine::SampleResult>(op).completions)
    out.emplace_back(samples[0].tokens, samples[0].logprobs);
  return out;
}

inline void train(Engine& engine, const std::string& tenant) {
  engine.run<engine::ForwardResult>(engine::work(tenant));
  engine.run<engine::StepResult>(engine::Step{.tenant = tenant, .options = R"({"lr": 0.05})"});
}

// Calls of all ranks at once, each with its link.
using Script = std::function<void(Link&, int rank)>;
inline void on_ranks(int size, const Options& options, const Script& script,
                     double timeout_s = 20) {
  auto comms = mesh::thread_comms(size, timeout_s);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      Link link(std::move(comms[static_cast<size_t>(r)]), options);
      script(link, r);
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace twinkle::sync
