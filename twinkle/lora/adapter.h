// One low-rank adapter (Hu et al. 2021): for some linears, y += scale * (dropout(x) A^T) B^T with A
// [r, I] and B [O, r] in float32, and the gradients summed for them. Knows no tenant and no
// optimizer. Owned by the pool; its thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/kernels/lora.h"
#include "twinkle/model/decoder.h"

namespace twinkle::lora {

struct AdapterOptions {
  int64_t rank = 8;  // >= 1
  double alpha = 8;  // scale = alpha / rank, or alpha / sqrt(rank) with rslora (Kalajdzievski 2023)
  double dropout = 0;  // [0, 1), on the adapter's input, in training
  bool rslora = false;
  bool all_linear = true;  // every linear but the head; else `targets` or `target_regex`
  std::vector<std::string>
      targets;               // a path, or what follows a dot at its end: "q_proj", "mlp.down_proj"
  std::string target_regex;  // non-empty: matches the whole path

  // From PEFT's adapter_config.json. Fields that would change the arithmetic and that we do not
  // have are refused by name unless they hold PEFT's default.
  static AdapterOptions parse(const Json& peft);
  Json to_peft() const;
  double scale() const;
};

// Throws unless the ranges hold.
void check(const AdapterOptions& options);

struct Factors {
  std::string path;  // of the linear: "model.layers.0.self_attn.q_proj"
  kernels::LoraFactors f;
  at::Tensor grad_a, grad_b;  // float32 sums since the last step, as a and b
};

class Adapter {
 public:
  // A uniform in +-1/sqrt(I) (PEFT's kaiming_uniform with a = sqrt(5)), B zero; the same for the
  // same seed. Error kInvalid: a target that matches no linear, with what there is.
  Adapter(const AdapterOptions& options, std::vector<model::NamedLinear> linears, uint64_t seed);

  const AdapterOptions& options() const { return options_; }
  std::vector<Factors>& factors() { return factors_; }
  const std::vector<Factors>& factors() const { return factors_; }

  // The factors of the decoder's linear number `index`, or nullptr.
  Factors* at(size_t index) {
    return index_[index] < 0 ? nullptr : &factors_[static_cast<size_t>(index_[index])];
  }

  void repack();  // after a or b changed
  void zero_grads();
  int64_t num_parameters() const;

 private:
  AdapterOptions options_;
  std::vector<Factors> factors_;
  std::vector<int> index_;  // linear -> factor, or -1
};

// The indices of the linears that the options target. Error kInvalid as above.
std::vector<size_t> match_targets(const AdapterOptions& options,
                                  const std::vector<model::NamedLinear>& linears);

}  // namespace twinkle::lora
