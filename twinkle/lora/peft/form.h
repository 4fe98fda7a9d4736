// The form of an adapter that peft 0.21 reads over transformers 5, where experts are stacks.
//
// An adapter here may have factors of every expert's gate_proj, up_proj and down_proj. peft has one
// pair of a stack's: of gate_up_proj the A of the gate and the up one below the other, their B on
// the diagonal of a larger one, the rank that of both, as it turns older files. Nor does it take
// gate_proj, up_proj and down_proj in target_modules for what they are where a model has experts:
// it makes stacks of all that end so, those of dense layers and of shared experts, too
// (peft/utils/transformers_weight_conversion.py). Those are parameters here, "mlp.up_proj.weight",
// whose factors have a module's keys, and which it leaves alone. The numbers are the same; what the
// form does not tell, the adapter's own config does, which the file keeps besides.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "twinkle/io/peft/peft.h"
#include "twinkle/lora/expert_factors.h"
#include "twinkle/lora/targets.h"

namespace twinkle::lora {

class Adapter;

// A pair of all experts of a parameter, which the factors of some of their linears are put into.
struct PeftStack {
  struct Part {
    std::string name;   // name of the linears: "gate_proj", or the parameter's own
    int64_t rank = 0;   // rank of each
    double scale = 0;   // scale of each
    double factor = 1;  // that B has in the stack, a power of two: the stack has one scale
    std::vector<std::optional<size_t>> linears;  // by expert; nullopt: not adapted, zeros
  };

  std::string module;    // the entry's
  LinearShape whole;     // an expert's matrix of the parameter
  bool in_turn = false;  // rows of gate and up, else one after the other
  std::vector<Part> parts;

  int64_t num_experts() const { return static_cast<int64_t>(parts[0].linears.size()); }
  int64_t rank() const;  // rank of all parts
  // The experts' pairs as the file's one, and back: by part and expert; undefined where there are
  // none. Error kInvalid: numbers where all parts have zeros.
  Pair joined(const std::vector<std::vector<Pair>>& pairs) const;
  std::vector<std::vector<Pair>> split(const Pair& all) const;
};

struct PeftForm {
  PeftConfig config;
  bool is_own = true;  // the adapter's own config, entries() and names are what peft reads
  std::vector<PeftStack> stacks;
  std::string missing;  // why an adapter has no such form; empty: it has
};

// The form of an adapter of this config, for a model whose experts peft knows as stacks.
PeftForm peft_form(const PeftConfig& config, std::span<const LinearShape> linears);
// The entries of such a form, which is not the adapter's own. They borrow its memory.
std::vector<PeftEntry> peft_entries(const Adapter& adapter, const PeftForm& form,
                                    std::span<const LinearShape> linears);

// The config of a file that peft wrote as an adapter here has it: target_modules reach linears of
// experts only if the file has factors of those; names that match nothing are left out, as peft
// passes them over; a linear's weight among the parameters is the linear.
PeftConfig resolved(const PeftAdapter& saved, std::span<const LinearShape> linears);

}  // namespace twinkle::lora
