// For tests: ranks of a mesh, as threads, that train all weights, and what each is told.
#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "twinkle/engine/group/groups_for_test.h"

namespace twinkle::engine {

inline constexpr size_t kSequences = 8;

inline ForwardBackward batch(uint64_t seed) {
  ForwardBackward out{.tenant = "a"};
  for (uint64_t i = 0; i < kSequences; ++i)
    out.sequences.push_back(drawn(100 * seed + i, 3 + i, 41));
  return out;
}

inline JsonObject config_of(const std::string& family, bool tied) {
  JsonObject config = smallest_config();
  config["model_type"] = family;
  config["architectures"] = model::tiny_config(family).at("architectures");
  config["num_hidden_layers"] = 2;
  config["tie_word_embeddings"] = tied;
  return config;
}

inline EngineOptions in_float32(const model::TinyModel& model) {
  return {.model = {.path = model.path(), .mixed_precision = "no"}};
}

// A rank's orders, and its state.
struct Told {
  std::vector<double> numbers;
  std::vector<std::vector<float>> logps;  // for its own sequences
  std::vector<NamedTensor> tensors;
  std::vector<int32_t> tokens;
  std::string bits;  // for all of it
};

// One rank of a mesh, or the only one.
class Rank {
 public:
  Rank(Engine& engine, int rank, int size, Told& told)
      : engine_(engine),
        index_(static_cast<size_t>(rank)),
        part_{kSequences * static_cast<size_t>(rank) / static_cast<size_t>(size),
              kSequences * static_cast<size_t>(rank + 1) / static_cast<size_t>(size)},
        told_(told) {}

  size_t index() const { return index_; }
  const Told& told() const { return told_; }
  void forget() { told_ = {}; }
  void create() { run(Create{.tenant = "a", .seed = 3}); }
  void learn(uint64_t seed) { learn(batch(seed)); }
  void learn(ForwardBackward whole) {
    const auto result = std::get<ForwardResult>(run(sliced(std::move(whole), part_)));
    told_.numbers.insert(told_.numbers.end(), {result.loss, result.num_tokens});
    told_.logps.insert(told_.logps.end(), result.logps.begin(), result.logps.end());
  }
  void score(uint64_t seed) {
    const auto result = std::get<ForwardResult>(
        run(sliced(Forward{.tenant = "a", .sequences = batch(seed).sequences}, part_)));
    told_.logps.insert(told_.logps.end(), result.logps.begin(), result.logps.end());
  }
  void step(Step step) {
    step.tenant = "a";
    const auto result = std::get<StepResult>(run(std::move(step)));
    told_.numbers.insert(told_.numbers.end(),
                         {result.grad_norm, result.num_tokens, static_cast<double>(result.step)});
  }
  void clip(double max_norm, double norm_type) {
    const auto result = std::get<StepResult>(run(ClipGradNorm{"a", max_norm, norm_type}));
    told_.numbers.push_back(result.grad_norm);
  }
  void inspect() { told_.tensors = std::get<InspectResult>(run(Inspect{"a", true})).tensors; }
  void sample() {
    const auto result = std::get<SampleResult>(run(Sample{
        .tenant = "a", .prompts = {{5, 6}}, .params = {{.max_tokens = 6, .temperature = 0}}}));
    told_.tokens = result.completions.at(0).at(0).tokens;
  }
  Result run(const Operation& operation) {
    Result out = engine_.submit(operation).get();
    told_.bits += OutcomeText().of(out);
    return out;
  }

 private:
  Engine& engine_;
  const size_t index_;
  const Part part_;
  Told& told_;
};

using Life = std::function<void(Rank&)>;

inline std::vector<Told> on_mesh(const Mesh& mesh, EngineOptions options, const Life& life) {
  options.model.gathered_bytes = mesh.gathered_bytes;
  std::vector<Told> out(static_cast<size_t>(mesh.size()));
  if (mesh.size() == 1) {
    Engine engine(options);
    Rank rank(engine, 0, 1, out[0]);
    life(rank);
    return out;
  }
  on_ranks(mesh, options, [&](Engine& engine, int r, const auto&) {
    Rank rank(engine, r, mesh.size(), out[static_cast<size_t>(r)]);
    life(rank);
  });
  return out;
}

}  // namespace twinkle::engine
