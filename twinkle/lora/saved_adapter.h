// Adapters in PEFT directories, read into host memory and checked against a model's linears.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "twinkle/io/peft/peft.h"
#include "twinkle/lora/targets.h"
#include "twinkle/lora/variants/kinds.h"

namespace twinkle::lora {

// An adapter that was read into host memory.
struct SavedAdapter {
  struct Module {
    std::string path;
    at::Tensor a, b;               // float32; one tensor where experts share it
    std::vector<at::Tensor> more;  // the others of kinds_of() the config

    const at::Tensor& value(size_t kind) const {
      return kind == 0 ? a : kind == 1 ? b : more[kind - 2];
    }
  };
  PeftConfig config;
  std::vector<Module> modules;  // in the order of the linears
  at::Tensor score;             // the head of labels [num_labels, D], float32; undefined: none

  // The numbers of those that have a tensor of their own, as Adapter::held's, and a tensor.
  std::vector<size_t> held() const;
  const Kind& kind(size_t i) const;  // as Adapter's
  const at::Tensor& value(size_t i) const;
  std::string name(size_t i) const;
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

// Error kInvalid: the saved adapter's rank or scale is not that of `target`, or its modules are not
// `modules`, or its experts share factors and target's do not, or its head has other labels.
void check_fits(const SavedAdapter& saved, const PeftConfig& target,
                std::span<const std::string> modules);

}  // namespace twinkle::lora
