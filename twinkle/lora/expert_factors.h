// The adapters of routed experts as peft keeps them. An expert's linears have paths of their own,
// "model.layers.0.mlp.experts.3.down_proj", and so have an adapter's factors here. peft 0.17 and
// later, over transformers 5, targets the stacked weight, a parameter of the experts' module, and
// keeps the factors of all experts E in one pair for each: A [E r, in], an expert's rows one after
// the other, and B [out, r E], an expert's columns E apart. Two parameters of one module are
// wrapped one in the other, in the order of their names: down_proj's pair is named by the module,
// gate_up_proj's by its base_layer, and either by the module where it is alone. (peft 0.21,
// tuners/lora/layer.py, ParamWrapper) Tinker keeps the gates, ups and downs of all experts in three
// pairs of A [E, r, in] and B [E, out, r], w1, w3 and w2, and its experts share the outer factors:
// one A of w1, one of w3, one B of w2, with 1 in place of E.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "twinkle/io/peft/peft.h"
#include "twinkle/lora/targets.h"

namespace twinkle::lora {

// An expert's linear.
struct ExpertPath {
  std::string module;  // "model.layers.0.mlp.experts"
  int64_t expert;
  std::string name;  // "gate_up_proj"

  std::string parameter() const { return module + "." + name; }
};
std::optional<ExpertPath> expert_path(const std::string& path);

// Mixtral's experts have the names in adapters' files that transformers 4 gave them, by which peft
// and others know them still: block_sparse_moe.experts.3.w1, w3 and w2 of what is here
// mlp.experts.3.gate_proj, up_proj and down_proj. Of a path, its end, or a pattern of such.
void to_mixtrals_name(std::string& path);
void from_mixtrals_name(std::string& path);

// The indices of the experts' linears that the config's target_parameters are, in all linears.
// Error kInvalid: a name that is no stack of experts, with what there is.
std::vector<size_t> match_parameters(const PeftConfig& config,
                                     std::span<const LinearShape> linears);

// One pair for all experts of a parameter.
struct StackedPair {
  std::string module;           // its name in a file
  std::vector<size_t> linears;  // linears of the experts, in order
};
// One of those that match_parameters gives.
std::vector<StackedPair> stacked_pairs(std::span<const LinearShape> linears,
                                       std::span<const size_t> matched);

// Tinker's pairs for all gate_proj, up_proj and down_proj of experts among the linears.
std::vector<StackedPair> tinkers_pairs(std::span<const LinearShape> linears);
// True if it is B that experts share of this linear, down_proj, and not A.
bool shares_b(const ExpertPath& path);

// Tensors are numbered as Adapter's. Of each one the first that has the same tensor: itself, unless
// experts share factors.
std::vector<size_t> holders(const PeftConfig& config, std::span<const std::string> paths);

// The remedy for factors that do not fit: they are transposed, or of something else.
constexpr const char* remedy_of(bool transposed) {
  return transposed ? ": transpose it, or save it again with peft"
                    : ": is it of another base model?";
}

struct Pair {
  at::Tensor a, b;  // [r, in], [out, r] of one expert; [E r, in], [out, r E] of all
};
// How a file has the pairs of a stack's experts.
struct StackLayout {
  LinearShape expert;  // any of them
  int64_t num_experts, rank;
  std::string peft_version;  // that wrote it; empty is a new one
  // True if the file's other stacks are transposed; nullopt: none of them shows it.
  std::optional<bool> turned_round = {};
};
// True if a stack is transposed whose A has this shape, which has been checked. nullopt: in
// equals out.
std::optional<bool> turned_by_shape(std::span<const int64_t> a, const LinearShape& expert);
// Error kInvalid: shapes that fit neither these experts nor, turned round, what peft before 0.19
// wrote; `what` names the pair.
void check_stack(std::span<const int64_t> a, std::span<const int64_t> b, const StackLayout& layout,
                 const std::string& what);
// The same of Tinker's pairs, [E, r, in] and [E, out, r], with 1 in place of E in the factor that
// experts share, if `shared`.
void check_tinkers(std::span<const int64_t> a, std::span<const int64_t> b,
                   const StackLayout& layout, bool shared, const std::string& what);
// The pairs of all experts from one, which has been checked, and back. Where in equals out, the
// file's other stacks say whether this one is turned round, and where none of them tells, the
// version does. It cannot for gpt-oss's down_proj alone: peft 0.19 and later turns it over
// transformers 4, not over transformers 5, and names neither in the file. Then 5 is meant.
std::vector<Pair> split_pair(const Pair& all, const StackLayout& layout);
Pair joined_pair(std::span<const Pair> experts);

}  // namespace twinkle::lora
