// Results of operations: plain values that turn into bytes and back, as operations do.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "twinkle/base/fields.h"
#include "twinkle/sampler/params.h"

namespace twinkle::engine {

struct ForwardResult {
  double loss = 0;  // as the loss defines it (CrossEntropyLoss: the sum over tokens, nats); 0 of a
                    // Forward without one
  double num_tokens = 0;  // the step's divisor; without a loss, the number of labels
  // Per sequence and token, or label of it; 0 where the label is ignored.
  std::vector<std::vector<float>> logps;
  std::vector<std::vector<float>> entropies;  // the same, only when asked for, by a loss too
  // Only when asked for, per sequence: [tokens x vocabulary], already divided by the temperature;
  // and the last token's final hidden state divided by its L2 norm, [width] (nn/head/pooling.h), of
  // a ForwardBackward with an embedding_grad too.
  std::vector<std::vector<float>> logits, embeddings;
  double aux_loss = 0;  // for routed experts, without its coefficient, which asks for it
  // Only when asked for, per sequence: where every token went, as Example has it, ascending.
  std::vector<std::vector<int32_t>> routed_experts;
  // Per sequence, in place of logps: [num_labels] of a tenant whose adapter has a head of labels.
  std::vector<std::vector<float>> label_logits;

  bool operator==(const ForwardResult&) const = default;
  static constexpr std::string_view kName = "forward";
  static constexpr auto fields() {
    return std::tuple{field(1, "loss", &ForwardResult::loss),
                      field(2, "num_tokens", &ForwardResult::num_tokens),
                      field(3, "logps", &ForwardResult::logps),
                      field(4, "entropies", &ForwardResult::entropies),
                      field(5, "logits", &ForwardResult::logits),
                      field(6, "embeddings", &ForwardResult::embeddings),
                      field(7, "aux_loss", &ForwardResult::aux_loss),
                      field(8, "routed_experts", &ForwardResult::routed_experts),
                      field(9, "label_logits", &ForwardResult::label_logits)};
  }
};

struct StepResult {
  double grad_norm = 0;  // before clipping
  double num_tokens = 0;
  int64_t step = 0;  // optimizer steps taken so far

  bool operator==(const StepResult&) const = default;
  static constexpr std::string_view kName = "step";
  static constexpr auto fields() {
    return std::tuple{field(1, "grad_norm", &StepResult::grad_norm),
                      field(2, "num_tokens", &StepResult::num_tokens),
                      field(3, "step", &StepResult::step)};
  }
};

using sampler::Completion;

struct SampleResult {
  std::vector<std::vector<Completion>> completions;  // [prompt][sample]
  std::vector<sampler::PromptScores> prompts;        // [prompt]

  bool operator==(const SampleResult&) const = default;
  static constexpr std::string_view kName = "sample";
  static constexpr auto fields() {
    return std::tuple{field(1, "completions", &SampleResult::completions),
                      field(2, "prompts", &SampleResult::prompts)};
  }
};

struct PublishResult {
  int64_t version = 0;  // 1, 2, ... of this tenant

  bool operator==(const PublishResult&) const = default;
  static constexpr std::string_view kName = "publish";
  static constexpr auto fields() {
    return std::tuple{field(1, "version", &PublishResult::version)};
  }
};

struct SaveResult {
  std::string directory;

  bool operator==(const SaveResult&) const = default;
  static constexpr std::string_view kName = "save";
  static constexpr auto fields() {
    return std::tuple{field(1, "directory", &SaveResult::directory)};
  }
};

struct LoadResult {
  std::string extra_json;

  bool operator==(const LoadResult&) const = default;
  static constexpr std::string_view kName = "load";
  static constexpr auto fields() {
    return std::tuple{field(1, "extra_json", &LoadResult::extra_json)};
  }
};

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;

  bool operator==(const NamedTensor&) const = default;
  static constexpr auto fields() {
    return std::tuple{field(1, "name", &NamedTensor::name), field(2, "shape", &NamedTensor::shape),
                      field(3, "values", &NamedTensor::values)};
  }
};

struct InspectResult {
  uint64_t weights = 0, gradients = 0, optimizer = 0;  // checksums of the bytes
  int64_t num_parameters = 0, step = 0;
  double num_tokens = 0;  // accumulated since the last step
  std::vector<NamedTensor> tensors;

  bool operator==(const InspectResult&) const = default;
  static constexpr std::string_view kName = "inspect";
  static constexpr auto fields() {
    return std::tuple{field(1, "weights", &InspectResult::weights),
                      field(2, "gradients", &InspectResult::gradients),
                      field(3, "optimizer", &InspectResult::optimizer),
                      field(4, "num_parameters", &InspectResult::num_parameters),
                      field(5, "step", &InspectResult::step),
                      field(6, "num_tokens", &InspectResult::num_tokens),
                      field(7, "tensors", &InspectResult::tensors)};
  }
};

struct Done {
  bool operator==(const Done&) const = default;
  static constexpr std::string_view kName = "done";
  static constexpr auto fields() { return std::tuple<>(); }
};

using Result = std::variant<Done, ForwardResult, StepResult, SampleResult, SaveResult, LoadResult,
                            InspectResult, PublishResult>;

int64_t num_bytes(const Result& result);  // that it takes in memory
std::string to_bytes(const Result& result);
Result result_from_bytes(std::span<const char> bytes);  // Error kInvalid: as from_bytes

}  // namespace twinkle::engine
