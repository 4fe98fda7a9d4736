// A family's names of the decoder's weights, where that is not what the blocks call
// them (Hugging Face's names of llama: "model.layers.0.self_attn.q_proj.weight"), and which of
// their tensors the decoder does not read. Data of a family; knows no file. weight_source.h reads
// by it, and the engine's saves write by it.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle::model {

// A name that begins with `ours`, and ends there or goes on with ".", begins with `theirs` instead.
struct Rename {
  std::string ours, theirs;
};

// A weight of matrices [E, rows, columns] that may be stored as one tensor, or as E times as many
// as there are parts. Which of the two a checkpoint has, the name's presence says.
struct Stack {
  std::string name;                // in the checkpoint's layer: "mlp.experts.gate_up_proj"
  std::vector<std::string> parts;  // one after the other in each matrix, of equal shape; "*" stands
                                   // for its number: "mlp.experts.*.gate_proj.weight"
};

struct Layout {
  std::vector<Rename> model = {};  // renames of whole names; the first that fits counts
  std::vector<Rename> layer = {};  // renames of names after "model.layers.N."
  std::vector<Stack> stacks = {};
  // True of a family whose class in transformers has experts as stacks, by which peft knows them.
  bool has_stacked_experts = false;
  // Beginnings of the names, as in the checkpoint, of tensors that no causal decoder reads
  // (vision, heads that predict further tokens). They survive a save.
  std::vector<std::string> skipped = {};
  // Beginnings of the names of layers behind the last one. settle() adds those to `skipped` that
  // predict further tokens.
  std::vector<std::string> behind = {};
  // Ends of the names of weights that are float32 where the others are bfloat16.
  std::vector<std::string> in_float32 = {};
  // Beginnings of names by now (`ours`), and of those in older files of the family.
  std::vector<Rename> older = {};
  bool is_older = false;  // the checkpoint has names of the older kind

  // The checkpoint's name of a weight.
  std::string name(const std::string& ours) const;
  // The path of a linear, which adapters know it by: older files change it not.
  std::string path(const std::string& ours) const;
  // By the names in a checkpoint, whether it is older, and which layers behind the last one predict
  // further tokens: those with an "eh_proj", which joins a token with what the model says of it.
  void settle(std::span<const std::string> names);
  // True if the decoder does not read the tensor of this name, and is right not to.
  bool skips(std::string_view name) const;
  bool is_in_float32(std::string_view name) const;
  // The names of the tensors of `num` matrices that a weight may be stored as; empty: it has one.
  std::vector<std::string> parts_of(std::string_view name, int64_t num) const;
};

}  // namespace twinkle::model
