#include "twinkle/io/peft/peft.h"

#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/io/atomic.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kScore = "base_model.model.score.weight";
constexpr const char* kOwn = "twinkle_adapter";
constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight",
                           kMagnitude = ".lora_magnitude_vector";

struct Pair {
  std::optional<StoredTensor> a, b, magnitude;
};

bool is_float(Dtype dtype) {
  return dtype == Dtype::kF32 || dtype == Dtype::kF16 || dtype == Dtype::kBF16;
}

// Where the config has ranks for some modules, or stacks of experts, whoever knows the modules
// looks at the ranks.
template <class Tensor>
void check_half(const Tensor& half, size_t rank_dim, const PeftConfig& config,
                const std::string& module) {
  const std::string where = "': lora_" + std::string(rank_dim == 0 ? "A" : "B") + ".weight";
  require(is_float(half.dtype), Code::kInvalid, module, where, " has the dtype ",
          name_of(half.dtype), ", it must be F32, F16 or BF16");
  const size_t more = is_tinkers(module) ? 1 : 0;
  const bool turned =
      half.shape.size() == 2 + more && half.shape[1 - rank_dim + more] == config.rank;
  require(half.shape.size() == 2 + more &&
              (half.shape[rank_dim + more] == config.rank || !config.rank_pattern.empty() ||
               !config.target_parameters.empty()),
          Code::kInvalid, module, where, " has the shape ", shape_text(half.shape),
          ", it must be [", more == 0 ? "" : "experts or 1, ", rank_dim == 0 ? "r, in]" : "out, r]",
          " with r = ", config.rank, turned ? ": transpose it, or save it again with peft" : "");
}

template <class Tensor>
void check_magnitude(const std::optional<Tensor>& magnitude, const PeftConfig& config,
                     const std::string& module) {
  require(magnitude.has_value() == config.use_dora, Code::kInvalid, module, "' has ",
          magnitude ? "a" : "no", " lora_magnitude_vector, and use_dora is ",
          config.use_dora ? "true" : "false", ": is adapter_config.json of another save?");
  require(!magnitude || (is_float(magnitude->dtype) && magnitude->shape.size() == 1),
          Code::kInvalid, module, "': lora_magnitude_vector must be F32, F16 or BF16, [out]");
}

// The module of a key "base_model.model.<module>.lora_A.weight", empty for another key.
std::string_view module_of(std::string_view key, std::string_view suffix) {
  if (!key.starts_with(kPrefix) || !key.ends_with(suffix)) return {};
  if (key.size() <= kPrefix.size() + suffix.size()) return {};
  return key.substr(kPrefix.size(), key.size() - kPrefix.size() - suffix.size());
}

// The base model's weight of which a key is a copy; empty for another key.
std::string base_weight_of(std::string_view key) {
  for (const std::string_view module :
       {"lm_head", "model.embed_tokens", "model.language_model.embed_tokens"}) {
    for (const std::string_view end : {".base_layer.weight", ".weight"}) {
      if (key == std::string(kPrefix).append(module).append(end))
        return std::string(module).append(".weight");
    }
  }
  return {};
}

template <class Tensor>
void check_score(const Tensor& score, int64_t num_labels, const std::string& where) {
  require(is_float(score.dtype) && score.shape.size() == 2 && score.shape[0] > 0 &&
              (num_labels == kLabelsOfFile || score.shape[0] == num_labels),
          Code::kInvalid, where, kScore, " is ", name_of(score.dtype), " of shape ",
          shape_text(score.shape), ", it must be F32, F16 or BF16 and [",
          num_labels == kLabelsOfFile ? "num_labels" : std::to_string(num_labels),
          ", the model's hidden_size]");
}

// The head of labels, whose number the config gets.
std::optional<StoredTensor> score_of(const SafetensorsFile& file, PeftConfig& config) {
  if (config.num_labels == 0) return std::nullopt;
  const std::string where = "io: " + file.path().string() + ": ";
  for (const StoredTensor& tensor : file.tensors()) {
    if (tensor.name != kScore) continue;
    check_score(tensor, config.num_labels, where);
    config.num_labels = tensor.shape[0];
    return tensor;
  }
  fail(Code::kInvalid, where, "it has no ", kScore,
       ", the head of an adapter whose task_type is SEQ_CLS: save it again with peft, with "
       "modules_to_save=[\"score\"]");
}

std::map<std::string, Pair> pairs_of(const SafetensorsFile& file, bool has_score) {
  std::map<std::string, Pair> pairs;
  for (const StoredTensor& tensor : file.tensors()) {
    if (!base_weight_of(tensor.name).empty() || (has_score && tensor.name == kScore)) continue;
    const std::string_view of_a = module_of(tensor.name, kA), of_b = module_of(tensor.name, kB),
                           of_magnitude = module_of(tensor.name, kMagnitude);
    require(
        !of_a.empty() || !of_b.empty() || !of_magnitude.empty(), Code::kInvalid,
        "io: ", file.path().string(), ": tensor '", tensor.name,
        "' is not a base_model.model.<module>.lora_A.weight or lora_B.weight: embeddings, biases "
        "and saved modules are features of peft that Twinkle does not support");
    if (!of_a.empty())
      pairs[std::string(of_a)].a = tensor;
    else if (!of_b.empty())
      pairs[std::string(of_b)].b = tensor;
    else
      pairs[std::string(of_magnitude)].magnitude = tensor;
  }
  return pairs;
}

// Factors that have values: how they began counts no more, unless the base's weights changed.
PeftConfig config_of_finished(const Json& object, const std::string& what) {
  PeftConfig config = peft_config(object, what);
  require(!config.init.starts_with("pissa"), Code::kInvalid, "io: ", what,
          ": field 'init_lora_weights' is \"", config.init,
          "\": the adapter works on weights that are not the base's any more; save it with peft's "
          "path_initial_model_for_weight_conversion, which makes a LoRA of it");
  config.init.clear();
  return config;
}

SafetensorsFile open_weights(const fs::path& dir) {
  const fs::path file = dir / "adapter_model.safetensors";
  require(is_there(file) || !is_there(dir / "adapter_model.bin"), Code::kInvalid,
          "io: ", dir.string(),
          " holds its adapter as adapter_model.bin, a pickle, which may run code and is not read: "
          "save it again as safetensors");
  return SafetensorsFile(file);
}

}  // namespace

bool is_tinkers(std::string_view module) {
  constexpr std::string_view kExperts = ".experts.w";
  return module.size() > kExperts.size() &&
         module.substr(0, module.size() - 1).ends_with(kExperts) &&
         std::string_view("123").find(module.back()) != std::string_view::npos;
}

PeftConfig read_peft_config(const fs::path& dir) {
  const fs::path file = dir / "adapter_config.json";
  require(is_there(file), Code::kNotFound, "io: ", dir.string(),
          " is no PEFT directory: adapter_config.json is missing");
  PeftConfig config = config_of_finished(read_json(file), file.string());
  if (config.num_labels == kLabelsOfFile) score_of(open_weights(dir), config);
  return config;
}

PeftAdapter read_peft(const fs::path& dir) {
  const fs::path config_file = dir / "adapter_config.json";
  const Json config = read_json(config_file);
  PeftAdapter adapter{.config = config_of_finished(config, config_file.string())};
  const Json* version = find(config, "peft_version");
  if (version != nullptr && version->is_string()) adapter.peft_version = version->get_string();
  const SafetensorsFile file = open_weights(dir);
  const std::string name = file.path().string();
  if (const auto own = file.metadata().find(kOwn); own != file.metadata().end()) {
    const std::string what = name + ": " + kOwn + " of its metadata";
    adapter.own = peft_config(parse_json(own->second, what), what);
  }
  adapter.score = score_of(file, adapter.config);
  for (auto& [module, pair] : pairs_of(file, adapter.score.has_value())) {
    const std::string where = std::string("io: ").append(name).append(": module '").append(module);
    require(pair.a && pair.b, Code::kInvalid, where, "' has no lora_", pair.a ? "B" : "A",
            ".weight");
    check_half(*pair.a, 0, adapter.config, where);
    check_half(*pair.b, 1, adapter.config, where);
    check_magnitude(pair.magnitude, adapter.config, where);
    adapter.entries.push_back(
        {module, std::move(*pair.a), std::move(*pair.b), std::move(pair.magnitude)});
  }
  require(!adapter.entries.empty(), Code::kInvalid, "io: ", name, " holds no LoRA factors");
  for (const StoredTensor& tensor : file.tensors()) {
    if (std::string weight = base_weight_of(tensor.name); !weight.empty())
      adapter.base_weights.emplace_back(std::move(weight), tensor);
  }
  return adapter;
}

void write_peft(const fs::path& dir, const PeftConfig& config, std::span<const PeftEntry> entries,
                const PeftConfig* own, const TensorView* score) {
  PeftConfig finished = config;
  finished.init.clear();
  Json document = json_of(finished);
  peft_config(document, "the adapter's config");  // factors that could not be read are not written
  require(!entries.empty(), Code::kInvalid, "io: an adapter needs at least one module");
  require((config.num_labels > 0) == (score != nullptr), Code::kInvalid,
          "io: the adapter's config has num_labels ", config.num_labels, ", but it comes with",
          score ? "" : "out", " a head of labels");
  document.as_object().erase("num_labels");  // peft has it from the base model's config
  std::vector<TensorView> views;
  for (const PeftEntry& entry : entries) {
    const std::string where = std::string("io: module '").append(entry.module);
    check_half(entry.a, 0, config, where);
    check_half(entry.b, 1, config, where);
    check_magnitude(entry.magnitude, config, where);
    const std::string stem = std::string(kPrefix).append(entry.module);
    views.push_back(entry.a);
    views.back().name.assign(stem).append(kA);
    views.push_back(entry.b);
    views.back().name.assign(stem).append(kB);
    if (!entry.magnitude) continue;
    views.push_back(*entry.magnitude);
    views.back().name.assign(stem).append(kMagnitude);
  }
  if (score != nullptr) {
    check_score(*score, config.num_labels, "io: ");
    views.push_back(*score);
    views.back().name = kScore;
  }
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  if (own != nullptr) metadata[kOwn] = boost::json::serialize(json_of(*own));
  write_safetensors(dir / "adapter_model.safetensors", views, metadata, Commits::kWithFolder);
  write_file_atomically(dir / "adapter_config.json", pretty(document), Commits::kWithFolder);
}

}  // namespace twinkle
