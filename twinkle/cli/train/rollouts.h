// Replies that the trained model samples, their rewards, and the advantages that grpo learns from.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/cli/run/python_module.h"
#include "twinkle/cli/train/training.h"
#include "twinkle/data/dataset.h"
#include "twinkle/engine/engine.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {

// A user's function in a process of Python's: `python -m twinkle.reward.worker FILE.py:NAME`.
class RewardWorker {
 public:
  // Error kInvalid: there is no such function, or its file cannot be imported.
  RewardWorker(const std::string& name, double seconds);
  // One for each trajectory. `rows`: the data's row of each. Error kInvalid: it raises, answers
  // anything else, or takes longer than its time; the text names the row.
  std::vector<double> rewards(const JsonArray& trajectories, const data::Dataset& data,
                              const std::vector<int64_t>& rows);

 private:
  const std::string name_;
  const std::chrono::milliseconds limit_;
  PythonModule worker_;
};

class Rollouts {
 public:
  Rollouts(const Goal& goal, const text::Template& tmpl, uint64_t seed);

  // num_generations replies to each of the batch's prompts, one prompt's after another's, with
  // their advantages and the log-probabilities that they were sampled with. Prompt i of the batch
  // draws by seed + consumed + i. Adds means to `noted`. Error kInvalid: the reward's.
  std::vector<engine::Example> sample(engine::Engine& engine, const data::Dataset& rows,
                                      const std::vector<int64_t>& batch, int64_t consumed,
                                      JsonObject& noted);

 private:
  const Goal& goal_;
  const text::Template& tmpl_;
  const uint64_t seed_;
  RewardWorker worker_;
};

}  // namespace twinkle::cli
