// Metrics: numbers about the batches of a run, collected batch by batch. Knows no model, no process
// and no thread: an object is its caller's, who uses it from one thread at a time. One metric is
// one file here, which says what it reads and tells, and one line in metrics.def.
//
// Shapes: N labels of a batch that count, its S sequences one after the other; B, L: sequences and
// their padded length; D: width of an embedding.
#pragma once
#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle::metric {

// A batch, what its loss was called with, and what came of it. A metric reads what it knows by
// name; a batch without what it needs counts nothing.
struct Batch {
  std::map<std::string, at::Tensor, std::less<>> tensors;  // float64 on the CPU
  JsonObject numbers;           // "loss", "lr", ...; null: it is not there
  std::vector<int64_t> counts;  // [S] labels of each sequence that count

  // Undefined: it is not there.
  at::Tensor tensor(std::string_view name) const;
  // The same of an [N], or an [S]. Error kInvalid: it has another shape.
  at::Tensor of_labels(std::string_view name) const;
  at::Tensor of_sequences(std::string_view name) const;
  // Nothing: it is not there. Error kInvalid: it is no number.
  std::optional<double> number(std::string_view name) const;

  // [S] the sums of an [N] over the labels of each sequence.
  at::Tensor sums(const at::Tensor& of_labels) const;
};

// An optimizer step.
struct Step {
  std::optional<double> grad_norm;  // before clipping; nothing: it was not computed
  Json lr;                          // that it used: a number, or one for each group of parameters
  int64_t iters = 0;                // steps so far
};

class Metric {
 public:
  virtual ~Metric() = default;
  // Error kInvalid: a tensor of another shape; nothing is counted then.
  virtual void accumulate(const Batch& batch) = 0;
  virtual void on_step(const Step& step);
  // {name: number} of what was collected since the last reset, in a fixed order.
  virtual JsonObject calculate() const = 0;
  virtual void reset() = 0;
};

struct Kind {
  std::string_view class_name;                       // "GRPOMetric": as scripts name it
  std::vector<std::string_view> inputs, outputs;     // tensors of the batch, and of the model
  std::vector<std::string_view> arguments, numbers;  // tensors of the loss's call; Batch::numbers
  Json (*options)() = nullptr;                       // as loss::described
  std::unique_ptr<Metric> (*make)(const JsonObject& options, std::string_view name) = nullptr;
};

const std::vector<Kind>& all();
// Error kInvalid: unknown.
const Kind& find(std::string_view class_name);
// Error kInvalid: also an option that is not known, or out of its range.
std::unique_ptr<Metric> make(std::string_view class_name, const JsonObject& options = {});

}  // namespace twinkle::metric
