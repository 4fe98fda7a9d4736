// For tests: batches drawn from a seed for the tiny model, and a tenant's state as checksums.
#pragma once
#include <filesystem>
#include <map>
#include <string>
#include <tuple>

#include "twinkle/base/random.h"
#include "twinkle/engine/engine.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::engine {

inline Example drawn(uint64_t seed, size_t num_tokens, uint64_t vocabulary = 131) {
  Example s;
  for (size_t t = 0; t < num_tokens; ++t) {
    s.input_ids.push_back(static_cast<int32_t>(key_of(seed, t) % vocabulary));
    s.labels.push_back(static_cast<int32_t>(key_of(seed, t + 1) % vocabulary));
  }
  return s;
}

inline ForwardBackward work(const std::string& tenant, uint64_t seed = 1) {
  return {.tenant = tenant, .sequences = {drawn(seed, 6), drawn(seed + 100, 9)}};
}

// Weights, gradients, optimizer, steps and tokens of a tenant; of a frozen one the base's weights.
using State = std::tuple<uint64_t, uint64_t, uint64_t, int64_t, double>;
inline State state_of(Engine& engine, const std::string& tenant) {
  const auto r = engine.run<InspectResult>(Inspect{tenant});
  return {r.weights, r.gradients, r.optimizer, r.step, r.num_tokens};
}

// Every file below a folder with its bytes.
inline std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) out[entry.path().string()] = read_text(entry.path());
  }
  return out;
}

}  // namespace twinkle::engine
