#include "twinkle/model/family.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

namespace twinkle::model {

#define FAMILY(name) Family name();
#include "twinkle/model/families/families.def"
#undef FAMILY

// The limit keeps a broken config from asking for all of the memory.
int64_t read_size(const Json& config, std::string_view key) {
  constexpr int64_t limit = int64_t{1} << 30;
  const auto value = get<int64_t>(config, key);
  require(value > 0, Code::kInvalid, "model: config field '", key, "' is ", value,
          ", it must be at least 1");
  require(value <= limit, Code::kInvalid, "model: config field '", key, "' is ", value,
          ", the limit is ", limit);
  return value;
}

bool read_flag(const Json& config, std::string_view key, bool absent) {
  const bool given = config.is_object() && config.get_object().contains(key);
  return get_or(config, key, !given && absent);
}

const Json* find_rope(const Json& config) {
  const Json* scaling = find(config, "rope_scaling");
  const bool empty = scaling && scaling->is_object() && scaling->get_object().empty();
  return scaling && !empty ? scaling : find(config, "rope_parameters");
}

namespace {

constexpr int64_t kMaxLayers = 65536;

// Options of other decoders, each with the value that leaves a llama as it is; NaN: there is none.
// A family that has one names it among its keys; of the others, a model that was trained with it
// would be computed wrongly.
struct Option {
  std::string_view key;
  double neutral;  // 0 and 1 are false and true, too
};

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr Option kOptions[] = {
    {"attention_multiplier", kNone},
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"logits_scaling", 1},
    {"logit_scale", 1},
    {"logits_scale", 1},
    {"scale_emb", 1},
    {"scale_depth", kNone},
    {"dim_model_base", kNone},
    {"final_logit_softcapping", kNone},
    {"attn_logit_softcapping", kNone},
    {"query_pre_attn_scalar", kNone},
    {"clip_qkv", kNone},
    {"attention_chunk_size", kNone},
    {"attn_temperature_tuning", 0},
    {"no_rope_layers", kNone},
    {"no_rope_layer_interval", kNone},
    {"rope_interleaved", 0},
    {"rope_local_base_freq", kNone},
    {"rotary_pct", 1},
    {"use_mrope", 0},
    {"use_qk_norm", 0},
    {"qk_layernorm", 0},
    {"alibi", 0},
    {"use_parallel_residual", 0},
    {"use_bidirectional_attention", 0},
    {"is_causal", 1},
    {"num_experts", 0},
    {"num_local_experts", 0},
    {"n_routed_experts", 0},
    {"kv_lora_rank", kNone},
    {"pre_seq_len", kNone},
    {"quantization_bit", 0},
    {"partial_rotary_factor", 1},
    {"attn_output_gate", 0},
    {"scoring_func", kNone},
    {"topk_method", kNone},
    {"router_jitter_noise", 0},
    {"rmsnorm", 1},
    {"apply_residual_connection_post_layernorm", 0},
    {"post_layer_norm", 1},
    {"add_bias_linear", 0},
    {"original_rope", 1},
    {"fp32_residual_connection", 0},
    {"rope_interleave", 0},
    {"use_sliding_window", 0},
    {"swiglu_limit", kNone},
    {"swiglu_alpha", kNone},
    {"per_layer_config", kNone},
};

bool is_empty(const Json& value) {
  return (value.is_array() && value.get_array().empty()) ||
         (value.is_object() && value.get_object().empty());
}

void refuse_foreign(const Json& config, const Family& family) {
  const Json* rope = find_rope(config);
  for (const auto& [key, neutral] : kOptions) {
    if (std::ranges::find(family.keys, key) != family.keys.end()) continue;
    for (const Json* place : {&config, rope}) {
      const Json* value = place && place->is_object() ? find(*place, key) : nullptr;
      if (!value || is_empty(*value)) continue;
      const bool same = (value->is_bool() && neutral == (value->get_bool() ? 1.0 : 0.0)) ||
                        (value->is_number() && neutral == value->to_number<double>());
      require(same, Code::kInvalid, "model: config field '", key, "' is ",
              boost::json::serialize(*value), "; it changes the arithmetic, and model_type '",
              family.name, "' is computed without it");
    }
  }
}

void refuse_quantised(const Json& config) {
  const Json* quantised = find(config, "quantization_config");
  const Json* method = quantised ? find(*quantised, "quant_method") : nullptr;
  require(!quantised, Code::kInvalid, "model: quantization_config has the quant_method ",
          method ? boost::json::serialize(*method) : "null",
          " for these weights, which is not supported; use an unquantised checkpoint, fp8 weights "
          "with weight_block_size or a GGUF file");
}

constexpr std::string_view kRopeKeys[] = {
    "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings",
    "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "truncate", "attention_factor",
    "mscale", "mscale_all_dim", "partial_rotary_factor",
    // In DeepSeek-R1-0528-Qwen3-8B. transformers reads only attention_factor, so that this one
    // changes nothing there.
    "attn_factor", "finetuned"};  // a remark of some yarn checkpoints

void check_rope_keys(const Json& rope) {
  require(rope.is_object(), Code::kInvalid, "model: the config's rope is ",
          boost::json::serialize(rope), ", it must be an object");
  for (const auto& [name, value] : rope.get_object()) {
    const std::string_view key(name.data(), name.size());
    const bool known =
        std::find(std::begin(kRopeKeys), std::end(kRopeKeys), key) != std::end(kRopeKeys);
    require(known || value.is_null(), Code::kInvalid, "model: the config's rope has the field '",
            key, "', which may change the arithmetic and is not supported");
  }
}

std::vector<int64_t> read_windows(const Json& config, int64_t num_layers) {
  std::vector<int64_t> windows(static_cast<size_t>(num_layers), 0);
  if (!get_or(config, "use_sliding_window", false)) return windows;
  if (!find(config, "sliding_window")) return windows;  // null: none, as in transformers
  const int64_t window = read_size(config, "sliding_window");
  const Json* types = find(config, "layer_types");
  if (!types) {
    const auto first = get_or<int64_t>(config, "max_window_layers", 28);
    require(first >= 0, Code::kInvalid, "model: config field 'max_window_layers' is ", first,
            ", it must be at least 0");
    for (int64_t i = first; i < num_layers; ++i) windows[static_cast<size_t>(i)] = window;
    return windows;
  }
  require(types->is_array() && std::ssize(types->get_array()) == num_layers, Code::kInvalid,
          "model: config field 'layer_types' must list ", num_layers, " layers");
  for (size_t i = 0; i < windows.size(); ++i) {
    const Json& type = types->get_array()[i];
    require(type == "sliding_attention" || type == "full_attention", Code::kInvalid,
            "model: config field 'layer_types' holds ", boost::json::serialize(type),
            "; known: \"full_attention\", \"sliding_attention\"");
    if (type == "sliding_attention") windows[i] = window;
  }
  return windows;
}

constexpr std::string_view kCausal = "ForCausalLM";
constexpr std::string_view kClassifier = "ForTokenClassification";
constexpr std::string_view kSequenceClassifier = "ForSequenceClassification";

std::string with_head(const std::string& architecture, std::string_view head) {
  if (!architecture.ends_with(kCausal)) return {};  // it has no such class
  return architecture.substr(0, architecture.size() - kCausal.size()) + std::string(head);
}

// True if the first architecture in config.json, or null, is one of the family's with a value head.
bool is_classifier(const Json* architecture, const Family& family) {
  return architecture && std::ranges::any_of(family.architectures, [&](const std::string& name) {
           return *architecture == Json(with_head(name, kClassifier)) ||
                  *architecture == Json(with_head(name, kSequenceClassifier));
         });
}

const Json* first_architecture(const Json& config) {
  const Json* list = find(config, "architectures");
  const bool some = list && list->is_array() && !list->get_array().empty();
  return some ? &list->get_array()[0] : nullptr;
}

// A field that is null is there.
Json with_absent(const Json& config, const Family& family) {
  Json out = config;
  Json* text = family.nested && find(out, "text_config") ? &out.as_object()["text_config"] : &out;
  if (!text->is_object()) return out;
  for (const auto& [key, value] : family.absent) text->as_object().emplace(key, value);
  return out;
}

// transformers counts two labels where nothing is said.
void require_one_label(const Json& config) {
  const Json* names = find(config, "id2label");
  const int64_t labels = names && names->is_object() ? std::ssize(names->get_object())
                                                     : get_or<int64_t>(config, "num_labels", 2);
  require(labels == 1, Code::kInvalid, "model: the checkpoint is a classifier with ", labels,
          " labels (id2label), a value head has 1");
}

}  // namespace

double read_rotary_share(const Json& config, double absent) {
  const Json* p = find_rope(config);
  const double beside = get_or(config, "partial_rotary_factor", absent);
  const double share = p && p->is_object() ? get_or(*p, "partial_rotary_factor", beside) : beside;
  require(share > 0 && share <= 1, Code::kInvalid,
          "model: config field 'partial_rotary_factor' is ", share,
          ", it must be above 0 and at most 1");
  return share;
}

void rotate_share(DecoderSpec& spec, double share) {
  const int64_t head_dim = spec.layers.front().attention().head_dim;
  const auto dims = static_cast<int64_t>(static_cast<double>(head_dim) * share);
  require(dims > 0 && dims % 2 == 0, Code::kInvalid,
          "model: config field 'partial_rotary_factor' is ", share, ", which is ", dims,
          " dims of ", head_dim, "; rope needs an even number of them");
  spec.rope.rotary_dim = dims;
}

double read_theta(const Json& config, std::string_view key, double absent) {
  const double theta = get_or(config, key, absent);
  require(theta > 1 && std::isfinite(theta), Code::kInvalid, "model: config field '", key, "' is ",
          theta, ", it must be finite and above 1");
  return theta;
}

double read_rope_number(const Json& rope, std::string_view key) {
  const auto value = get<double>(rope, key);
  require(value > 0 && std::isfinite(value), Code::kInvalid, "model: the config's rope has '", key,
          "' ", value, ", it must be finite and above 0");
  return value;
}

nn::RopeSpec read_rope(const Json& config) {
  nn::RopeSpec rope;
  const Json* parameters = find_rope(config);
  const Json none = JsonObject{};
  const Json& p = parameters ? *parameters : none;
  rope.theta = read_theta(find(p, "rope_theta") ? p : config, "rope_theta", 10000.0);
  const std::string kind = get_or(p, "rope_type", get_or<std::string>(p, "type", "default"));
  // dynamic: within max_position_embeddings, beyond which no sequence goes, it is the default.
  if (kind == "default" || kind == "dynamic") {
    check_rope_keys(p);
    return rope;
  }
  // Before the factor, which other kinds do not have.
  require(kind == "linear" || kind == "llama3" || kind == "yarn", Code::kInvalid,
          "model: rope kind '", kind,
          "' is not known; known: default, dynamic, linear, yarn, llama3");
  check_rope_keys(p);
  // The field of config.json takes precedence over the one in its rope, as in transformers.
  const auto original =
      get_or<int64_t>(config, "original_max_position_embeddings",
                      get_or<int64_t>(p, "original_max_position_embeddings",
                                      get_or<int64_t>(config, "max_position_embeddings", 0)));
  rope.factor = read_rope_number(p, "factor");
  rope.original_max_position = original;
  require(kind == "linear" || original > 0, Code::kInvalid,
          "model: config field 'original_max_position_embeddings' is ", original,
          ", it must be at least 1");
  if (kind == "linear") {
    rope.kind = nn::RopeKind::kLinear;
  } else if (kind == "llama3") {
    rope.kind = nn::RopeKind::kLlama3;
    rope.low_freq_factor = read_rope_number(p, "low_freq_factor");
    rope.high_freq_factor = read_rope_number(p, "high_freq_factor");
    require(rope.high_freq_factor > rope.low_freq_factor, Code::kInvalid,
            "model: the config's rope has 'high_freq_factor' ", rope.high_freq_factor,
            ", it must be above its 'low_freq_factor', ", rope.low_freq_factor);
  } else {
    rope.kind = nn::RopeKind::kYarn;
    if (find(p, "beta_fast")) rope.beta_fast = read_rope_number(p, "beta_fast");
    if (find(p, "beta_slow")) rope.beta_slow = read_rope_number(p, "beta_slow");
    rope.truncate = read_flag(p, "truncate", true);
    if (find(p, "attention_factor")) rope.attention_factor = get<double>(p, "attention_factor");
    if (find(p, "mscale")) rope.mscale = get<double>(p, "mscale");
    if (find(p, "mscale_all_dim")) rope.mscale_all_dim = get<double>(p, "mscale_all_dim");
  }
  return rope;
}

DecoderSpec llama_like(const Json& config) {
  DecoderSpec spec;
  spec.vocab_size = read_size(config, "vocab_size");
  spec.hidden_size = read_size(config, "hidden_size");
  const int64_t num_layers = read_size(config, "num_hidden_layers");
  require(num_layers <= kMaxLayers, Code::kInvalid, "model: config field 'num_hidden_layers' is ",
          num_layers, ", the limit is ", kMaxLayers);
  const GatedMlpSpec mlp{.intermediate_size = read_size(config, "intermediate_size")};
  spec.max_positions = read_size(config, "max_position_embeddings");
  spec.norm.eps = get_or(config, "rms_norm_eps", 1e-6);
  require(spec.norm.eps > 0 && spec.norm.eps <= 1, Code::kInvalid, "model: rms_norm_eps is ",
          spec.norm.eps, ", it must be above 0 and at most 1");
  spec.tied_head = get_or(config, "tie_word_embeddings", false);
  AttentionSpec a;
  a.num_heads = read_size(config, "num_attention_heads");
  a.num_kv_heads =
      find(config, "num_key_value_heads") ? read_size(config, "num_key_value_heads") : a.num_heads;
  require(a.num_heads % a.num_kv_heads == 0, Code::kInvalid, "model: num_attention_heads is ",
          a.num_heads, ", it must be a multiple of num_key_value_heads, ", a.num_kv_heads);
  a.head_dim =
      find(config, "head_dim") ? read_size(config, "head_dim") : spec.hidden_size / a.num_heads;
  require(a.head_dim > 0, Code::kInvalid, "model: hidden_size is ", spec.hidden_size,
          ", too small for num_attention_heads, ", a.num_heads);
  require(a.head_dim % 2 == 0, Code::kInvalid, "model: head_dim is ", a.head_dim,
          ", rope needs an even one");
  for (const int64_t window : read_windows(config, num_layers)) {
    a.window = window;
    spec.layers.push_back({a, mlp});
  }
  spec.rope = read_rope(config);
  spec.rope.rotary_dim = a.head_dim;
  const auto activation = get_or<std::string>(config, "hidden_act", "silu");
  require(activation == "silu" || activation == "swish", Code::kInvalid, "model: hidden_act '",
          activation, "' is not known; known: silu, swish, which are one");
  const double dropout = get_or(config, "attention_dropout", 0.0);
  require(dropout == 0.0, Code::kInvalid, "model: attention_dropout is ", dropout,
          "; only 0 is supported: set it to 0 in config.json");
  require_value<int64_t>(config, "pretraining_tp", 1);
  return spec;
}

std::span<const Family> families() {
  static const auto all = std::to_array<Family>({
#define FAMILY(name) name(),
#include "twinkle/model/families/families.def"
#undef FAMILY
  });
  return all;
}

const Json& text_of(const Json& config) {
  const Json* text = find(config, "text_config");
  return text ? *text : config;
}

DecoderSpec read_spec(const Json& config, bool value_head) {
  const auto type = get_or<std::string>(config, "model_type", "");
  std::string known;
  for (const Family& family : families()) {
    known += (known.empty() ? "" : ", ") + family.name;
    if (family.name != type && std::ranges::find(family.also, type) == family.also.end()) continue;
    const Json* first = first_architecture(config);
    const bool classifier = is_classifier(first, family);
    bool served = !first || (classifier && value_head);
    for (const std::string& name : family.architectures) served = served || *first == Json(name);
    require(served, Code::kInvalid, "model: architecture ",
            first ? boost::json::serialize(*first) : "", " of model_type '", type,
            "' is not known; known: ", family.architectures[0],
            classifier ? ", and this one with value_head (TransformersValueModel)" : "");
    if (classifier) require_one_label(config);
    require(!value_head || (family.classifier && family.architectures[0].ends_with(kCausal)),
            Code::kInvalid, "model: value_head is set, but model_type '", type,
            "' has no token classifier in transformers, as which it would be saved");
    refuse_foreign(family.nested ? text_of(config) : config, family);
    // It may stand beside text_config.
    for (const Json* place : {&config, &text_of(config)}) refuse_quantised(*place);
    DecoderSpec spec = family.spec(with_absent(config, family));
    spec.family = family.name;
    spec.value_head = value_head;
    spec.new_head = value_head && !classifier;
    spec.tied_head = spec.tied_head && !value_head;
    return spec;
  }
  require(!type.empty(), Code::kInvalid, "model: model_type is missing; known: ", known);
  fail(Code::kInvalid, "model: model_type '", type, "' is not known; known: ", known);
}

void describe_value_head(JsonObject& config, const DecoderSpec& spec) {
  for (const Family& family : families()) {
    if (family.name == spec.family)
      config["architectures"] = JsonArray{Json(with_head(family.architectures[0], kClassifier))};
  }
  config["id2label"] = JsonObject{{"0", "LABEL_0"}};
  config["label2id"] = JsonObject{{"LABEL_0", 0}};
  config.erase("num_labels");
  config.erase("token_classification_bias");  // there is one
}

}  // namespace twinkle::model
