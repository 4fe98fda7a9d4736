// One low-rank adapter (Hu et al. 2021): for some linears, y += scale * (dropout(x) A^T) B^T with A
// [r, I] and B [O, r] in float32, a head of labels where its config has one, and the gradients
// summed for them. Knows no tenant and no optimizer. Owned by the pool; its thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "twinkle/io/peft/peft.h"
#include "twinkle/kernels/lora/lora.h"
#include "twinkle/lora/labels/label_head.h"
#include "twinkle/lora/saved_adapter.h"
#include "twinkle/lora/targets.h"
#include "twinkle/lora/variants/kinds.h"
#include "twinkle/model/decoder.h"

namespace twinkle::lora {

// The tensors of one linear, one for each of kinds_of() the adapter's config.
struct Factors {
  std::string path;  // path of the linear: "model.layers.0.self_attn.q_proj"
  kernels::LoraFactors f;
  std::vector<at::Tensor> more;   // those behind A and B
  std::vector<at::Tensor> grads;  // float32 sums since the last step, of all; undefined: zero
  bool scales_grad = true;        // false for a shadow: B's has no scale yet
  at::Tensor row_norms;           // DoRA's: derived, as f's packed tensors are

  at::Tensor& value(size_t kind) { return kind == 0 ? f.a : kind == 1 ? f.b : more[kind - 2]; }
  const at::Tensor& value(size_t kind) const {
    return kind == 0 ? f.a : kind == 1 ? f.b : more[kind - 2];
  }
  // Makes what the kernels read with rows of this type.
  void pack(at::ScalarType type);
  // For a file.
  PeftEntry entry() const;
};

class Adapter {
 public:
  // With start_of()'s values, the same for the same seed; without a seed zeros, which load()
  // replaces. Error kInvalid: a target that matches no linear, with what there is; a variant that
  // does not work on one of them.
  Adapter(const PeftConfig& config, std::vector<model::NamedLinear> linears,
          std::optional<uint64_t> seed);

  const PeftConfig& config() const { return config_; }
  std::vector<Factors>& factors() { return factors_; }
  const std::vector<Factors>& factors() const { return factors_; }
  // Undefined where the config has no num_labels.
  LabelHead& label_head() { return label_head_; }
  const LabelHead& label_head() const { return label_head_; }
  // Its number as a parameter, the last one.
  size_t label_parameter() const { return kinds_.size() * factors_.size(); }

  // The factors of the decoder's linear number `index`, or nullptr.
  Factors* at(size_t index) {
    const int at = places_->factor_of[index];
    return at < 0 ? nullptr : &factors_[static_cast<size_t>(at)];
  }
  // The decoder's linears that have factors, in the order of factors().
  const std::vector<size_t>& linears() const { return places_->linears; }

  // Replaces all values by those of a saved adapter that was read for the same linears. Error
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
  // Tensors are numbered by kind: A, B, ... of the first factor, of the second ..., and the head of
  // labels. Each expert that shares one sums a gradient of its own during an operation, so that the
  // sum's order is that of the experts however the operation is cut; join_shared_grads() adds them
  // to the first one's.
  size_t num_tensors() const { return label_parameter() + (label_head_.defined() ? 1 : 0); }
  const Kind& kind(size_t i) const {
    return i == label_parameter() ? kLabelKind : kinds_[i % kinds_.size()];
  }
  at::Tensor& grad(size_t i) {
    if (i == label_parameter()) return label_head_.grad;
    return factors_[i / kinds_.size()].grads[i % kinds_.size()];
  }
  at::Tensor& value(size_t i) {
    if (i == label_parameter()) return label_head_.weight;
    return factors_[i / kinds_.size()].value(i % kinds_.size());
  }
  const at::Tensor& value(size_t i) const {
    if (i == label_parameter()) return label_head_.weight;
    return factors_[i / kinds_.size()].value(i % kinds_.size());
  }
  // A tensor's name, in checkpoints and for the optimizer. One that experts share is the first's.
  std::string name(size_t i) const {
    if (i == label_parameter()) return kLabelWeight;
    return kind(i).name(factors_[i / kinds_.size()].path);
  }
  // The numbers of those that have a tensor of their own, ascending; and of these, of those that
  // learn.
  const std::vector<size_t>& held() const { return places_->held; }
  const std::vector<size_t>& learned() const { return places_->learned; }
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

  int64_t num_parameters() const;  // that learn
  // Size of all its tensors.
  int64_t num_bytes() const;

 private:
  Adapter(const Adapter&) = default;  // shares the tensors

  // For a model with many experts it is larger than what a copy's factors need besides tensors:
  // copies share it.
  struct Places {
    std::vector<int> factor_of;  // index for each of the decoder's linears, or -1
    std::vector<size_t> linears;
    std::vector<size_t> holders, held, learned;  // numbers of tensors
  };

  Factors made(const model::NamedLinear& linear, const Sizes& sizes, std::optional<uint64_t> seed);
  void add_label_head(const std::vector<model::NamedLinear>& linears, std::optional<uint64_t> seed,
                      Places& places);

  PeftConfig config_;
  std::span<const Kind> kinds_;
  std::vector<Factors> factors_;
  LabelHead label_head_;
  std::shared_ptr<const Places> places_;
};

}  // namespace twinkle::lora
