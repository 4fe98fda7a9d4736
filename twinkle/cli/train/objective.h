// The objectives of `twinkle train`: how rows become sequences, which loss they get, and what the
// loss is given besides. Knows no optimizer and no file but the rows'.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/cli/train/training.h"
#include "twinkle/data/dataset.h"
#include "twinkle/engine/engine.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {

struct Work {
  engine::ForwardBackward pass;
  JsonObject noted = {};  // for the log
};

// A row's first message of the user, and the system's before it.
struct Prompt {
  std::string user, system;
};

class Objective {
 public:
  virtual ~Objective() = default;

  // The encoded rows of a file, all of which can be learned from. Error kInvalid: with file and
  // line.
  virtual data::Dataset read(const std::string& file) const = 0;
  virtual Prompt prompt(const data::Row& row) const = 0;
  // The pass over these rows, with what the loss asks for. `consumed`: rows before them in the
  // run. Error kInvalid: a reward that fails.
  virtual Work work(engine::Engine& engine, const data::Dataset& rows,
                    const std::vector<int64_t>& batch, int64_t consumed) = 0;
  // Numbers of the result besides the loss, for the log.
  virtual void note(Work&, const engine::ForwardResult&) const {}
  // Error kInvalid: the model has no room for what a row needs.
  virtual void check(const engine::ModelInfo& model, const data::Dataset& rows) const;
  // The loss is a mean over rows; false: a sum over labels.
  virtual bool is_mean() const { return true; }
};

// `tmpl` has no limit of its own and outlives it. Starts the worker of rewards. Error kInvalid: it
// has no such reward.
std::unique_ptr<Objective> make_objective(const TrainingOptions& options,
                                          const text::Template& tmpl);
// A number of all tokens and labels.
std::string fingerprint(const data::Dataset& rows);

}  // namespace twinkle::cli
