// The engine as the service sees it: check, then queue; facts of the one model that it serves.
// Without torch, so that tests put a dispatcher over a null model behind it.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/engine/execute/adapter_size.h"
#include "twinkle/engine/execute/sampling_stats.h"
#include "twinkle/engine/memory/parking_stats.h"
#include "twinkle/engine/schedule/accepted.h"
#include "twinkle/engine/schedule/dispatcher.h"

namespace twinkle::server {

struct ModelFacts {
  std::string directory;           // of the model's files
  std::vector<std::string> names;  // under which clients ask for it; the first is told
  int64_t max_positions = 0;       // tokens of a sequence
  int64_t vocab_size = 0;
  int64_t kv_tokens = std::numeric_limits<int64_t>::max();  // the same, that is sampled
  int64_t num_layers = 0;
  std::string architecture;
  engine::AdapterSizes adapter_sizes;  // as engine::ModelInfo's, like the next
  int64_t carried_bytes = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const ModelFacts& model() const = 0;
  // As Engine's of these names.
  virtual engine::Stats stats() const = 0;
  virtual engine::SamplingStats sampling() const = 0;
  virtual engine::ParkingStats parking() const = 0;
  virtual void validate(const engine::Operation& operation) const = 0;
  virtual int64_t bytes_of(const engine::Operation& operation) const = 0;
  // An error leaves the operation as it is.
  virtual engine::Accepted check(engine::Operation&& operation,
                                 engine::Beyond beyond = engine::Beyond::kRefused,
                                 const engine::SampleHooks& hooks = {}) = 0;
  virtual int64_t submit(engine::Accepted accepted, engine::OnDone on_done) = 0;
  virtual bool cancel(int64_t id) = 0;
};

}  // namespace twinkle::server
