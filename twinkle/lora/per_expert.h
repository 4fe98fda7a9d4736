// An adapter written with factors of every expert's linears, "...mlp.experts.3.gate_proj", as peft
// kept them before experts were stacks and as other programs read them. What an adapter has for a
// stack's gate_up_proj is A twice, for gate_proj and for up_proj, and the halves of B; a factor
// that experts share is written for each: the same products. Read again, these are factors of their
// own.
#pragma once
#include <map>
#include <span>
#include <string>
#include <vector>

#include "twinkle/io/peft/peft.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/lora/targets.h"
#include "twinkle/model/weights/layout.h"

namespace twinkle::lora {

struct PerExpert {
  PeftConfig config;  // without target_parameters and share_expert_factors
  std::vector<PeftEntry> entries;
};

// `linears`: all of the decoder's. The entries borrow the adapter's memory. Of an adapter without
// experts: its config() and entries().
PerExpert per_expert(const Adapter& adapter, std::span<const LinearShape> linears);

struct ExpertSize {
  int64_t rank;
  double alpha;
};
// By path, of the experts' linears that the adapter has as modules.
std::map<std::string, ExpertSize> experts_of(const Adapter& adapter,
                                             std::span<const LinearShape> linears);
// Puts patterns in front by which each of these has its rank and alpha by its own path, too: other
// programs do not look for the stack's.
void name_sizes_of_experts(PeftConfig& config, const std::map<std::string, ExpertSize>& linears);

// Linears of Mixtral's experts are called otherwise in files (to_mixtrals_name()).
bool has_mixtrals_names(const model::Layout& layout);
void give_mixtrals_names(PeftConfig& config, std::span<PeftEntry> entries);
void take_mixtrals_names(PeftAdapter& saved);  // from a file that has them

}  // namespace twinkle::lora
