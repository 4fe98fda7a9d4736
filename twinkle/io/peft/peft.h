// LoRA adapters as `peft` keeps them: a folder with adapter_config.json and
// adapter_model.safetensors. Knows files and shapes, not what a module does; fields of peft's that
// would change the arithmetic and that Twinkle does not have are refused by name. No torch. Values
// without locks. Format: https://huggingface.co/docs/peft/developer_guides/checkpoint
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/io/safetensors.h"

namespace twinkle {

inline constexpr int64_t kLabelsOfFile = -1;

struct PeftConfig {
  int64_t rank = 8;    // peft's `r`, at least 1
  double alpha = 8;    // the update is alpha / rank * B A x; with rsLoRA alpha / sqrt(rank)
  double dropout = 0;  // rate at the adapter's input, from 0 to below 1
  bool use_rslora = false;
  // Names of modules (a module matches if its path ends in one), or one text: "all-linear" or a
  // regular expression that must match a whole path.
  std::variant<std::vector<std::string>, std::string> target_modules;
  // Parameters that are not a module's weight matrix, by the end of their path: stacks of experts.
  std::vector<std::string> target_parameters = {};
  // Ranks and alphas of the modules whose path, or its end behind a dot, is matched by a regular
  // expression: the first that does counts.
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  // Numbers of the layers whose modules target_modules reaches by the ends of their paths; empty:
  // all layers. A path that is listed whole is reached in any layer.
  std::vector<int64_t> layers_to_transform = {};
  // Regular expressions of the modules before these numbers; empty: any name.
  std::vector<std::string> layers_pattern = {};
  // Modules that are left out: names, as in target_modules, or one regular expression that must
  // match a whole path.
  std::variant<std::vector<std::string>, std::string> exclude_modules = {};
  // First values of the factors, peft's init_lora_weights: empty (its true), "gaussian", "pissa" or
  // "pissa_niter_N". A folder's config has none: its factors have values.
  std::string init = {};
  bool use_dora = false;  // each row of the weight has a magnitude that learns
  // Twinkle's own: the experts of a layer share lora_A of gate_proj, that of up_proj, and lora_B of
  // down_proj. Such an adapter is kept as Tinker keeps it.
  bool share_expert_factors = false;
  // Twinkle's own: labels of the head beside the factors, peft's "score" with task_type SEQ_CLS; 0:
  // there is none. peft has their number from the base model's config; kLabelsOfFile: as many as
  // the tensor has rows.
  int64_t num_labels = 0;
  std::string base_model;  // id or directory; may be empty

  // True if exclude_modules or layers_to_transform leaves modules out.
  bool has_filters() const;
  void clear_filters();

  bool operator==(const PeftConfig&) const = default;
};

// One adapted linear layer, or all experts of a stack. R: rank, of a stack times its experts. Of a
// module of Tinker's, which is_tinkers() says: [E, R, in] and [E, out, R], 1 in place of E where
// the experts share it.
struct PeftEntry {
  std::string module;  // "model.layers.0.self_attn.q_proj"
  TensorView a;        // [R, in]; F32, F16 or BF16; its name is ignored by write_peft
  TensorView b;        // [out, R]
  std::optional<TensorView> magnitude = {};  // [out] of DoRA's
};

// True of "model.layers.0.mlp.experts.w1", w2 or w3: the gates, downs and ups of all experts as
// Tinker's downloads have them.
bool is_tinkers(std::string_view module);

struct StoredPeftEntry {
  std::string module;
  StoredTensor a;  // as PeftEntry's
  StoredTensor b;
  std::optional<StoredTensor> magnitude = {};
};

// An adapter in its file: names, types and shapes; bytes are read when they are asked for.
struct PeftAdapter {
  PeftConfig config;
  std::string peft_version = {};              // that wrote it, or empty
  std::vector<StoredPeftEntry> entries = {};  // sorted by module
  // Weights of the base model, of which peft saves copies where the output layer is targeted:
  // "lm_head.weight", "model.embed_tokens.weight", and their tensors.
  std::vector<std::pair<std::string, StoredTensor>> base_weights = {};
  // The config of the adapter that was saved, where write_peft had one besides.
  std::optional<PeftConfig> own = {};
  std::optional<StoredTensor> score = {};  // [num_labels, D] where the config says so
};

// From and to the object of adapter_config.json. `what` names it in errors.
// Error kInvalid: a field missing, of the wrong type or range, or one that Twinkle does not have at
// a value that counts.
PeftConfig peft_config(const Json& object, const std::string& what);
Json json_of(const PeftConfig& config);

// The config of a folder, with the num_labels of its tensors; its factors have values: init is
// empty. Error kNotFound: no adapter_config.json; kInvalid: as peft_config, or no JSON; of a head
// of labels as read_peft.
PeftConfig read_peft_config(const std::filesystem::path& dir);

// Error kNotFound: no adapter_config.json or adapter_model.safetensors; kInvalid: as peft_config
// and SafetensorsFile, a tensor that is no half of a LoRA pair, a half without the other, another
// shape than the config's rank says, a head of labels that is missing or of another number.
PeftAdapter read_peft(const std::filesystem::path& dir);

// Writes both files into `dir`, the staging folder of an AtomicDirectory, which syncs them. `own`:
// the adapter's config where its factors are written in another form; it is kept in the tensors'
// file's metadata, which peft does not read and does not keep. `score`: the head of labels
// [num_labels, D] where the config has one, else null; its name is ignored.
// Error kInvalid: no entries, a module twice, shapes that do not fit the config; AtomicFile's.
void write_peft(const std::filesystem::path& dir, const PeftConfig& config,
                std::span<const PeftEntry> entries, const PeftConfig* own = nullptr,
                const TensorView* score = nullptr);

}  // namespace twinkle
