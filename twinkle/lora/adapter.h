// One low-rank adapter (Hu et al. 2021): for some linears, y += scale * (dropout(x) A^T) B^T with A
// [r, I] and B [O, r] in float32, and the gradients summed for them. Knows no tenant and no
// optimizer. Owned by the pool; its thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/io/peft/peft.h"
#include "twinkle/kernels/lora/lora.h"
#include "twinkle/lora/saved_adapter.h"
#include "twinkle/lora/targets.h"
#include "twinkle/model/decoder.h"

namespace twinkle::lora {

struct Factors {
  std::string path;  // path of the linear: "model.layers.0.self_attn.q_proj"
  kernels::LoraFactors f;
  at::Tensor grad_a, grad_b;  // float32 sums since the last step, as a and b; undefined: zero
  bool scales_grad = true;    // false for a shadow: grad_b has no scale yet
};

// The names of a linear's two parameters, in checkpoints and for the optimizer. A tensor that
// experts share is the first one's.
inline std::string name_of_a(const std::string& path) { return path + ".lora_A.weight"; }
inline std::string name_of_b(const std::string& path) { return path + ".lora_B.weight"; }

class Adapter {
 public:
  // A uniform in +-1/sqrt(I) (PEFT's kaiming_uniform with a = sqrt(5)), B zero; the same for the
  // same seed. Error kInvalid: a target that matches no linear, with what there is.
  Adapter(const PeftConfig& config, std::vector<model::NamedLinear> linears, uint64_t seed);

  const PeftConfig& config() const { return config_; }
  std::vector<Factors>& factors() { return factors_; }
  const std::vector<Factors>& factors() const { return factors_; }

  // The factors of the decoder's linear number `index`, or nullptr.
  Factors* at(size_t index) {
    const int at = places_->factor_of[index];
    return at < 0 ? nullptr : &factors_[static_cast<size_t>(at)];
  }
  // The decoder's linears that have factors, in the order of factors().
  const std::vector<size_t>& linears() const { return places_->linears; }

  // Replaces a and b by those of a saved adapter that was read for the same linears. Error
  // kInvalid: another rank or scale, a module that the config does not target, or one that is
  // missing.
  void check(const SavedAdapter& saved) const;
  void load(const SavedAdapter& saved);  // checks first; nothing changes when that throws
  // Views for write_peft; they borrow this adapter's memory, or are copies of a device's.
  std::vector<PeftEntry> entries() const;

  // Makes what the kernels read with rows of this type, where that is missing.
  void pack(at::ScalarType type);
  // After a or b changed: what derives from them goes, and is made again when it is needed. An
  // adapter that rests holds its weights alone.
  void weights_changed();
  // Parameters are numbered A, B of the first factor, A, B of the second ... Each expert that
  // shares one sums a gradient of its own during an operation, so that the sum's order is that of
  // the experts however the operation is cut; join_shared_grads() adds them to the first one's.
  at::Tensor& grad(size_t i) { return i % 2 ? factors_[i / 2].grad_b : factors_[i / 2].grad_a; }
  at::Tensor& value(size_t i) { return i % 2 ? factors_[i / 2].f.b : factors_[i / 2].f.a; }
  const at::Tensor& value(size_t i) const {
    return i % 2 ? factors_[i / 2].f.b : factors_[i / 2].f.a;
  }
  std::string name(size_t i) const {
    const std::string& path = factors_[i / 2].path;
    return i % 2 ? name_of_b(path) : name_of_a(path);
  }
  // The numbers of those that have a tensor of their own, ascending.
  const std::vector<size_t>& held() const { return places_->held; }
  bool holds(size_t i) const { return places_->holders[i] == i; }
  void join_shared_grads();
  // Experts take the tensors that they share from the first one, as it has them now.
  void link_shared();
  // So that all are defined, or these.
  void make_grads();
  void make_grads(std::span<const size_t> which);
  void zero_grads();
  // A second adapter with a copy of these weights; the gradients move to it.
  std::unique_ptr<Adapter> fork();
  // The same weights and layouts, in the same memory, with gradients of its own, which are zero and
  // get no scale: add_grad_of_shadow() brings them here.
  std::unique_ptr<Adapter> shadow() const;
  // Adds gradient `i` of a shadow, [its elements], as a backward of this adapter would have added
  // it to its own, which is defined. float32 on the CPU.
  void add_grad_of_shadow(size_t i, const at::Tensor& flat);
  // For launches that are recorded: an adapter of the same weights, in the same memory, whose
  // layouts and gradients, once they are made, stay where they are. refresh() writes the layouts
  // anew.
  std::unique_ptr<Adapter> recorded_copy() const;
  void refresh();
  bool has_weights_of(const Adapter& other) const;  // in the same memory
  void swap(Adapter& recorded_copy) { factors_.swap(recorded_copy.factors_); }
  // The gradients' sums go on in the recorded_copy's memory, which is this adapter's until
  // zero_grads().
  void add_grads_in(Adapter& recorded_copy);

  int64_t num_parameters() const;
  // Size of all its tensors.
  int64_t num_bytes() const;

 private:
  Adapter(const Adapter&) = default;  // shares the tensors

  // For a model with many experts it is larger than what a copy's factors need besides tensors:
  // copies share it.
  struct Places {
    std::vector<int> factor_of;  // index for each of the decoder's linears, or -1
    std::vector<size_t> linears;
    std::vector<size_t> holders, held;  // indices of parameters
  };

  PeftConfig config_;
  std::vector<Factors> factors_;
  std::shared_ptr<const Places> places_;
};

}  // namespace twinkle::lora
