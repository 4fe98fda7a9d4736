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
#include "twinkle/model/decoder.h"

namespace twinkle::lora {

// alpha / rank, or alpha / sqrt(rank) with rsLoRA (Kalajdzievski 2023).
double scale_of(const PeftConfig& config);

struct Factors {
  std::string path;  // of the linear: "model.layers.0.self_attn.q_proj"
  kernels::LoraFactors f;
  at::Tensor grad_a, grad_b;  // float32 sums since the last step, as a and b; undefined: zero
  bool scales_grad = true;    // of a shadow false: grad_b has no scale yet
};

// The names of a linear's two parameters, in checkpoints and for the optimizer.
inline std::string name_of_a(const std::string& path) { return path + ".lora_A.weight"; }
inline std::string name_of_b(const std::string& path) { return path + ".lora_B.weight"; }

// A linear that an adapter can be attached to: y [outputs] of x [inputs].
struct LinearShape {
  std::string path;
  int64_t inputs, outputs;
};
std::vector<LinearShape> shapes_of(const std::vector<model::NamedLinear>& linears);

// An adapter that was read into host memory.
struct SavedAdapter {
  struct Module {
    std::string path;
    at::Tensor a, b;  // float32
  };
  PeftConfig config;
  std::vector<Module> modules;  // in the order of the linears
};

// True if a saved copy of the base model's weight of this name equals it.
using IsBaseWeight = std::function<bool(const std::string& name, const StoredTensor& copy)>;

// Reads a PEFT directory. Rank, scale, names and shapes are checked before any byte of a tensor is
// read: they must fit `target`, or, without one, the directory's own config. Error kNotFound,
// kInvalid: as read_peft; kInvalid: another rank or scale, a module or a shape that the linears do
// not have (an adapter of another base model), a module that is missing, NaN or infinity. `reserve`
// is called with the number of bytes that the tensors take, before they are allocated, and may
// throw.
SavedAdapter read_adapter(const std::filesystem::path& dir, std::span<const LinearShape> linears,
                          const std::function<void(int64_t)>& reserve = {},
                          const PeftConfig* target = nullptr,
                          const IsBaseWeight& is_base_weight = {});

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
    return index_[index] < 0 ? nullptr : &factors_[static_cast<size_t>(index_[index])];
  }

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
  // The gradients are numbered A, B of the first factor, A, B of the second ...
  at::Tensor& grad(size_t i) { return i % 2 ? factors_[i / 2].grad_b : factors_[i / 2].grad_a; }
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

  PeftConfig config_;
  std::vector<Factors> factors_;
  std::vector<int> index_;  // linear -> factor, or -1
};

// The indices of the linears that the config targets. Error kInvalid as above.
std::vector<size_t> match_targets(const PeftConfig& config, std::span<const LinearShape> linears);

}  // namespace twinkle::lora
