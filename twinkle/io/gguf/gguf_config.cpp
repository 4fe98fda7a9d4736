#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/io/gguf/gguf.h"
#include "twinkle/io/gguf/gguf_writer.h"

namespace twinkle {
namespace {

using NamePair = std::pair<std::string_view, std::string_view>;

constexpr std::array<NamePair, 2> kModelNames = {
    {{"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}}};

constexpr std::array<NamePair, 11> kLayerNames = {{{"attn_norm", "input_layernorm"},
                                                   {"ffn_norm", "post_attention_layernorm"},
                                                   {"attn_q", "self_attn.q_proj"},
                                                   {"attn_k", "self_attn.k_proj"},
                                                   {"attn_v", "self_attn.v_proj"},
                                                   {"attn_output", "self_attn.o_proj"},
                                                   {"attn_q_norm", "self_attn.q_norm"},
                                                   {"attn_k_norm", "self_attn.k_norm"},
                                                   {"ffn_gate", "mlp.gate_proj"},
                                                   {"ffn_up", "mlp.up_proj"},
                                                   {"ffn_down", "mlp.down_proj"}}};

struct Family {
  std::string_view name;          // GGUF's architecture and Hugging Face's model_type
  std::string_view architecture;  // Hugging Face's class
};

constexpr std::array<Family, 3> kFamilies = {
    {{"llama", "LlamaForCausalLM"}, {"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}}};

// Llama 3.1's published constants; a GGUF holds only the factors that follow from them.
constexpr int64_t kMaxFactors = 4096;  // half a head's size
constexpr double kLlama3Low = 1, kLlama3High = 4, kLlama3Context = 8192;

constexpr int64_t kMaxSize = int64_t{1} << 30;  // as that of sizes in config.json

// Keys behind the architecture's name that change the arithmetic, each with the value that leaves a
// dense model as it is. llama.cpp reads the first for every architecture, the others for some.
constexpr std::pair<std::string_view, double> kOptions[] = {{"attention.causal", 1},
                                                            {"nextn_predict_layers", 0},
                                                            {"expert_count", 0},
                                                            {"expert_used_count", 0},
                                                            {"expert_group_count", 0},
                                                            {"expert_group_used_count", 0},
                                                            {"expert_shared_count", 0},
                                                            {"rope.scaling.alpha", 0},
                                                            {"attention.sliding_window", 0},
                                                            {"attention.clamp_kqv", 0},
                                                            {"attention.max_alibi_bias", 0},
                                                            {"attention.scale", 0},
                                                            {"attention.output_scale", 0},
                                                            {"attention.value_scale", 0},
                                                            {"attention.temperature_scale", 0},
                                                            {"attention.shared_kv_layers", 0},
                                                            {"attn_logit_softcapping", 0},
                                                            {"final_logit_softcapping", 0},
                                                            {"logit_scale", 1},
                                                            {"residual_scale", 1},
                                                            {"embedding_scale", 1},
                                                            {"use_parallel_residual", 0},
                                                            {"swin_norm", 0}};

// Metadata under the architecture's prefix; errors name the file and the whole key.
class Fields {
 public:
  explicit Fields(const GgufFile& file)
      : file_(file), prefix_(string("general.architecture") + ".") {}

  std::string string(const std::string& key) const {
    const Json* value = at(key);
    require(value != nullptr && value->is_string(), Code::kInvalid, where(key),
            " must be a string");
    return std::string(value->get_string());
  }

  bool has(const std::string& key) const { return at(prefix_ + key) != nullptr; }

  int64_t size(const std::string& key) const {
    const Json* value = at(prefix_ + key);
    require(value != nullptr && value->is_int64() && value->get_int64() > 0, Code::kInvalid,
            where(prefix_ + key), " must be an integer of at least 1");
    require(value->get_int64() <= kMaxSize, Code::kInvalid, where(prefix_ + key), " is ",
            value->get_int64(), ", the limit is ", kMaxSize);
    return value->get_int64();
  }

  int64_t size_or(const std::string& key, int64_t fallback) const {
    return has(key) ? size(key) : fallback;
  }

  double real_or(const std::string& key, double fallback) const {
    return has(key) ? real(key) : fallback;
  }

  double real(const std::string& key) const {
    const Json* value = at(prefix_ + key);
    require(value != nullptr && value->is_double(), Code::kInvalid, where(prefix_ + key),
            " must be a float");
    require(std::isfinite(value->get_double()), Code::kInvalid, where(prefix_ + key), " is ",
            value->get_double(), ", it must be finite");
    return value->get_double();
  }

  // llama.cpp takes 0 for an absent one.
  double scale_or(const std::string& key, double fallback) const {
    const double value = real_or(key, fallback);
    require(value >= 0, Code::kInvalid, where(prefix_ + key), " is ", value,
            ", it must be at least 0");
    return value == 0 ? fallback : value;
  }

  // Error kInvalid: one of kOptions has another value than its neutral one.
  void refuse_options() const {
    for (const auto& [name, neutral] : kOptions) {
      const std::string key = prefix_ + std::string(name);
      const Json* value = at(key);
      if (!value) continue;
      const bool same = (value->is_bool() && neutral == (value->get_bool() ? 1.0 : 0.0)) ||
                        (value->is_number() && neutral == value->to_number<double>());
      require(same, Code::kInvalid, where(key), " is ", boost::json::serialize(*value),
              "; it changes the arithmetic, and a dense model is computed without it");
    }
  }

  // Error kInvalid: the key is there and is not this size.
  void require_size(const std::string& key, int64_t only, std::string_view whose) const {
    const int64_t given = size_or(key, only);
    require(given == only, Code::kInvalid, where(prefix_ + key), " is ", given, ", it must be ",
            whose, ", ", only);
  }

  std::string where(const std::string& key) const {
    return "io: " + file_.path().string() + ": metadata '" + key + "'";
  }

 private:
  const Json* at(const std::string& key) const { return file_.metadata().if_contains(key); }

  const GgufFile& file_;
  std::string prefix_;
};

// The rope scaling that gives the factors of the tensor rope_freqs.weight.
Json llama3_scaling(const GgufFile& file, const GgufTensor& tensor, double theta) {
  require(tensor.shape.size() == 1 && tensor.shape[0] <= kMaxFactors, Code::kInvalid,
          "io: ", file.path().string(), ": rope_freqs.weight has the shape ",
          shape_text(tensor.shape), ", it must have one dim of at most ", kMaxFactors);
  std::vector<float> factors(static_cast<size_t>(tensor.shape[0]));
  read_values(*file.file(), tensor, 0, factors);
  const double factor = *std::max_element(factors.begin(), factors.end());
  const Llama3Scaling scaling{factor, kLlama3Low, kLlama3High, kLlama3Context};
  for (size_t i = 0; i < factors.size(); ++i) {
    const double frequency =
        std::pow(theta, -static_cast<double>(i) / static_cast<double>(factors.size()));
    const double expected = scaling.of(frequency);
    require(std::abs(factors[i] - expected) <= 1e-3 * expected, Code::kInvalid,
            "io: ", file.path().string(), ": rope_freqs.weight[", i, "] is ", factors[i],
            ", Llama 3's scaling would have ", expected, ": no other scaling is supported");
  }
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", kLlama3Low},
          {"high_freq_factor", kLlama3High},
          {"original_max_position_embeddings", static_cast<int64_t>(kLlama3Context)}};
}

// llama.cpp takes "linear" where no type is given, and an older key for its factor.
Json scaling_of(const Fields& fields, const std::string& prefix) {
  const std::string key = prefix + "rope.scaling.type";
  const bool typed = fields.has("rope.scaling.type");
  const std::string type = typed ? fields.string(key) : "linear";
  const double attention = fields.scale_or("rope.scaling.attn_factor", 1);
  require(type == "yarn" || attention == 1, Code::kInvalid,
          fields.where(prefix + "rope.scaling.attn_factor"), " is ", attention,
          ", it must be 1, or the scaling's type yarn");
  if (type == "none") return {};
  require(type == "linear" || type == "yarn", Code::kInvalid, fields.where(key), " is '", type,
          "', it must be one of none, linear, yarn");
  const bool older = fields.has("rope.scale_linear") && !fields.has("rope.scaling.factor");
  const std::string from = older ? "rope.scale_linear" : "rope.scaling.factor";
  const double factor = typed && !older ? fields.real(from) : fields.scale_or(from, 1);
  if (!typed && factor == 1) return {};
  JsonObject scaling{{"rope_type", type}, {"factor", factor}};
  if (type != "yarn") return scaling;
  scaling["original_max_position_embeddings"] = fields.size("rope.scaling.original_context_length");
  // It multiplies what yarn has without it.
  if (attention != 1) scaling["attention_factor"] = attention * (0.1 * std::log(factor) + 1);
  return scaling;
}

void add_rope(JsonObject& config, const GgufFile& file, const Fields& fields) {
  const double theta = fields.real_or("rope.freq_base", 10000);
  config["rope_theta"] = theta;
  Json scaling = scaling_of(fields, get<std::string>(config, "model_type") + ".");
  if (const GgufTensor* factors = file.find("rope_freqs.weight")) {
    require(scaling.is_null(), Code::kInvalid, "io: ", file.path().string(),
            ": there is rope_freqs.weight and a rope.scaling, ", boost::json::serialize(scaling),
            ": both together are not supported");
    scaling = llama3_scaling(file, *factors, theta);
  }
  if (!scaling.is_null()) config["rope_scaling"] = std::move(scaling);
}

void add_token_ids(JsonObject& config, const GgufFile& file) {
  for (const auto& [ours, theirs] : {NamePair{"bos_token_id", "tokenizer.ggml.bos_token_id"},
                                     NamePair{"eos_token_id", "tokenizer.ggml.eos_token_id"},
                                     NamePair{"pad_token_id", "tokenizer.ggml.padding_token_id"}}) {
    const Json* id = file.metadata().if_contains(theirs);
    if (id != nullptr && id->is_int64()) config[ours] = *id;
  }
}

}  // namespace

std::string hugging_face_name(std::string_view gguf_name) {
  if (gguf_name == "output.weight") return "lm_head.weight";
  const size_t dot = gguf_name.rfind('.');
  if (dot == gguf_name.npos) return "";
  const std::string_view suffix = gguf_name.substr(dot);  // ".weight" or ".bias"
  if (suffix != ".weight" && suffix != ".bias") return "";
  std::string_view stem = gguf_name.substr(0, dot);
  for (const auto& [theirs, ours] : kModelNames) {
    if (stem == theirs) return std::string(ours).append(suffix);
  }
  if (!stem.starts_with("blk.")) return "";
  stem.remove_prefix(4);
  const std::string_view layer = stem.substr(0, stem.find('.'));
  if (layer.empty() || layer.size() == stem.size() ||
      layer.find_first_not_of("0123456789") != layer.npos) {
    return "";
  }
  stem.remove_prefix(layer.size() + 1);
  for (const auto& [theirs, ours] : kLayerNames) {
    if (stem != theirs) continue;
    return std::string("model.layers.").append(layer).append(".").append(ours).append(suffix);
  }
  return "";
}

std::string gguf_name(std::string_view hugging_face_name) {
  if (hugging_face_name == "lm_head.weight") return "output.weight";
  const size_t dot = hugging_face_name.rfind('.');
  if (dot == hugging_face_name.npos) return "";
  const std::string_view suffix = hugging_face_name.substr(dot);  // ".weight" or ".bias"
  if (suffix != ".weight" && suffix != ".bias") return "";
  std::string_view stem = hugging_face_name.substr(0, dot);
  for (const auto& [theirs, ours] : kModelNames)
    if (stem == ours) return std::string(theirs).append(suffix);
  constexpr std::string_view kLayers = "model.layers.";
  if (!stem.starts_with(kLayers)) return "";
  stem.remove_prefix(kLayers.size());
  const std::string_view layer = stem.substr(0, stem.find('.'));
  stem.remove_prefix(std::min(layer.size() + 1, stem.size()));
  for (const auto& [theirs, ours] : kLayerNames)
    if (stem == ours)
      return std::string("blk.").append(layer).append(".").append(theirs).append(suffix);
  return "";
}

double Llama3Scaling::of(double frequency) const {
  const double wave = 2 * std::numbers::pi / frequency;
  if (wave < context / high) return 1;
  if (wave > context / low) return factor;
  const double smooth = (context / wave - low) / (high - low);
  return 1 / ((1 - smooth) / factor + smooth);
}

Json gguf_config(const GgufFile& file) {
  const Fields fields(file);
  const std::string type = fields.string("general.architecture");
  const auto* const family = std::find_if(kFamilies.begin(), kFamilies.end(),
                                          [&](const Family& row) { return row.name == type; });
  require(family != kFamilies.end(), Code::kInvalid, "io: ", file.path().string(),
          ": architecture is '", type, "', it must be one of llama, qwen2, qwen3");
  const GgufTensor* embedding = file.find("token_embd.weight");
  require(embedding != nullptr && embedding->shape.size() == 2, Code::kInvalid,
          "io: ", file.path().string(), ": there is no tensor 'token_embd.weight' of two dims");
  const int64_t hidden = fields.size("embedding_length");
  const int64_t heads = fields.size("attention.head_count");
  const int64_t head = fields.size_or("attention.key_length", hidden / heads);
  fields.refuse_options();
  fields.require_size("attention.value_length", head, "a key's");
  fields.require_size("rope.dimension_count", head, "a head's whole size");
  JsonObject config{{"architectures", JsonArray{family->architecture}},
                    {"model_type", type},
                    {"hidden_size", hidden},
                    {"num_hidden_layers", fields.size("block_count")},
                    {"num_attention_heads", heads},
                    {"num_key_value_heads", fields.size_or("attention.head_count_kv", heads)},
                    {"head_dim", head},
                    {"intermediate_size", fields.size("feed_forward_length")},
                    {"rms_norm_eps", fields.real("attention.layer_norm_rms_epsilon")},
                    {"vocab_size", embedding->shape[0]},
                    {"max_position_embeddings", fields.size("context_length")},
                    {"tie_word_embeddings", file.find("output.weight") == nullptr},
                    {"hidden_act", "silu"},
                    {"torch_dtype", "bfloat16"}};
  if (type == "llama") {
    config["attention_bias"] = file.find("blk.0.attn_q.bias") != nullptr;
    config["mlp_bias"] = file.find("blk.0.ffn_up.bias") != nullptr;
  }
  add_rope(config, file, fields);
  add_token_ids(config, file);
  return config;
}

Json gguf_config(const std::filesystem::path& file) { return gguf_config(GgufFile(file)); }

}  // namespace twinkle
