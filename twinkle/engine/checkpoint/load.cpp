#include "twinkle/engine/checkpoint/load.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "twinkle/base/error.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tensors.h"

namespace twinkle::engine {
namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& value) { return value; }
std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return boost::json::serialize(Json(value)); }
std::string text_of(const std::vector<int64_t>& value) { return shape_text(value); }
std::string text_of(const std::optional<double>& value) {
  return value ? text_of(*value) : "missing";
}

// GGUF keeps them in float32.
bool same(double a, double b) { return static_cast<float>(a) == static_cast<float>(b); }
bool same(const std::optional<double>& a, const std::optional<double>& b) {
  return a.has_value() == b.has_value() && (!a || same(*a, *b));
}
template <class T>
bool same(const T& a, const T& b) {
  return a == b;
}

// Weights of another model may have the same names and shapes.
void require_same_model(const model::DecoderSpec& ours, const model::DecoderSpec& theirs,
                        const fs::path& directory) {
  const auto check = [&](std::string_view key, const auto& mine, const auto& other) {
    require(same(mine, other), Code::kInvalid, "engine: load: ", directory.string(),
            " is of another model: its ", key, " is ", text_of(other), ", this model's is ",
            text_of(mine));
  };
  check("model_type", ours.family, theirs.family);
  check("vocab_size", ours.vocab_size, theirs.vocab_size);
  check("hidden_size", ours.hidden_size, theirs.hidden_size);
  check("num_hidden_layers", ours.num_layers, theirs.num_layers);
  check("intermediate_size", ours.intermediate_size, theirs.intermediate_size);
  check("rms_norm_eps", ours.norm_eps, theirs.norm_eps);
  check("mlp_bias", ours.mlp_bias, theirs.mlp_bias);
  check("tie_word_embeddings", ours.tied_head, theirs.tied_head);
  const model::AttentionSpec &a = ours.attention, &b = theirs.attention;
  check("num_attention_heads", a.num_heads, b.num_heads);
  check("num_key_value_heads", a.num_kv_heads, b.num_kv_heads);
  check("head_dim", a.head_dim, b.head_dim);
  check("attention_bias", a.qkv_bias, b.qkv_bias);
  check("attention_bias (of o_proj)", a.o_bias, b.o_bias);
  check("q_norm", a.qk_norm, b.qk_norm);
  check("sliding_window (of each layer)", a.windows, b.windows);
  const nn::RopeSpec &r = a.rope, &s = b.rope;
  const auto kind = [](nn::RopeKind k) {
    return std::string(
        std::array{"default", "linear", "yarn", "llama3"}.at(static_cast<size_t>(k)));
  };
  check("rope_type", kind(r.kind), kind(s.kind));
  check("rope_theta", r.theta, s.theta);
  check("rope factor", r.factor, s.factor);
  check("original_max_position_embeddings", r.original_max_position, s.original_max_position);
  check("low_freq_factor", r.low_freq_factor, s.low_freq_factor);
  check("high_freq_factor", r.high_freq_factor, s.high_freq_factor);
  check("beta_fast", r.beta_fast, s.beta_fast);
  check("beta_slow", r.beta_slow, s.beta_slow);
  check("rope truncate", r.truncate, s.truncate);
  check("attention_factor", r.attention_factor, s.attention_factor);
  check("mscale", r.mscale, s.mscale);
  check("mscale_all_dim", r.mscale_all_dim, s.mscale_all_dim);
}

std::vector<at::Tensor> read_weights(const fs::path& directory, const BaseModel& base) {
  const Checkpoint checkpoint = Checkpoint::open(directory);
  // Refuses a critic's weights for a causal model, whose head may be tied and so not be read.
  const auto given = model::read_spec(checkpoint.config(), base.spec.value_head);
  require_same_model(base.spec, given, directory);
  const auto has_none = [&](const std::string& name) {
    return name == model::kValueBias && !given.new_head && !checkpoint.contains(name);
  };
  for (const auto& [name, shape] : base.weights) {
    if (!has_none(name)) model::stored_of(checkpoint, name, shape);
  }
  std::vector<at::Tensor> out;
  for (const auto& [name, shape] : base.weights)
    out.push_back(has_none(name) ? at::zeros(shape, base.dtype)
                                 : model::tensor_of(checkpoint, name, shape, base.dtype));
  return out;
}

TrainingShape training_shape(const lora::SavedAdapter& adapter) {
  TrainingShape out;
  for (const auto& module : adapter.modules) {
    out.params.push_back({lora::name_of_a(module.path), module.a.sizes().vec()});
    out.params.push_back({lora::name_of_b(module.path), module.b.sizes().vec()});
  }
  out.gradients = out.params;
  return out;
}

TrainingShape training_shape(const BaseModel& base) {
  TrainingShape out{base.weights, base.weights, true};
  const bool tied = !base.spec.value_head && base.weights.back().name != kHeadWeight;
  if (tied) out.gradients.push_back({kHeadWeight, base.weights.front().shape});
  return out;
}

}  // namespace

PeftConfig config_of(const Create& operation) {
  Json config = parse_json(operation.lora_json, "lora config");
  if (config.is_object() && !find(config, "peft_type")) config.as_object()["peft_type"] = "LORA";
  return peft_config(config, "lora config");
}

int64_t num_bytes(const Loaded& loaded) {
  int64_t n = 0;
  const auto add = [&n](const at::Tensor& t) {
    if (t.defined()) n += static_cast<int64_t>(t.nbytes());
  };
  if (loaded.adapter) {
    for (const auto& module : loaded.adapter->modules) add(module.a), add(module.b);
  }
  for (const at::Tensor& t : loaded.weights) add(t);
  if (!loaded.training) return n;
  for (const at::Tensor& t : loaded.training->gradients) add(t);
  for (const at::Tensor& t : loaded.training->masters) add(t);
  if (const auto& optimizer = loaded.training->optimizer) {
    for (const at::Tensor* t : optimizer->tensors()) add(*t);
  }
  return n;
}

lora::SavedAdapter read_adapter(const fs::path& directory, const BaseModel& base,
                                const std::function<void(int64_t)>& reserve,
                                const PeftConfig* target) {
  const auto is_base_weight = [&](const std::string& name, const StoredTensor& copy) {
    const Checkpoint checkpoint = Checkpoint::open(base.directory);
    // A tied head need not be in the files.
    return model::is_copy(
        copy, checkpoint.at(checkpoint.contains(name) ? name : "model.embed_tokens.weight"));
  };
  return lora::read_adapter(directory, base.linears, reserve, target, is_base_weight);
}

Loaded read_checkpoint(const Load& operation, const TenantShape& tenant, const BaseModel& base,
                       const std::function<void(int64_t)>& reserve) {
  const fs::path directory = operation.directory;
  std::error_code ignored;
  require(fs::is_directory(directory, ignored), Code::kNotFound,
          "engine: load: no checkpoint directory ", directory.string());
  require(tenant.mode != Mode::kFrozen, Code::kInvalid, "engine: load: tenant '", operation.tenant,
          "' is the frozen base model");
  Loaded out;
  if (tenant.mode == Mode::kLora)
    out.adapter = read_adapter(directory, base, reserve, &tenant.adapter);
  else
    out.weights = read_weights(directory, base);
  if (!operation.optimizer) return out;
  const TrainingShape shape = out.adapter ? training_shape(*out.adapter) : training_shape(base);
  out.training = read_training(directory, shape, operation.tenant,
                               operation.exact ? &base.arithmetic : nullptr, reserve);
  return out;
}

Loaded read_base(const Delete& operation, const BaseModel& base) {
  try {
    const Checkpoint checkpoint = Checkpoint::open(base.directory);
    Loaded out;
    for (const auto& [name, shape] : base.weights)
      out.weights.push_back(model::initial_weight(base.spec, checkpoint, name, shape, base.dtype));
    return out;
  } catch (const Error& e) {
    fail(e.code, "engine: delete: tenant '", operation.tenant,
         "' stays, because the base model's weights that it trained can't be read again: ",
         e.what(), "; put the files of ", base.directory.string(),
         " back and delete it again, or save it and make another engine");
  }
}

LoadResult load_tenant(Loaded loaded, Tenant& tenant, model::Decoder& decoder) {
  // All that may fail, for want of memory too, comes before the first change.
  if (loaded.training) {
    for (at::Tensor& t : loaded.training->gradients)
      if (t.defined()) t = t.to(decoder.device());
  }
  if (loaded.adapter) {
    tenant.adapter().check(*loaded.adapter);
    tenant.own_adapter().load(*loaded.adapter);
  } else {
    tenant.load_weights(loaded.weights);
  }
  tenant.reset_training();
  if (!loaded.training) return {};
  std::string extra = std::move(loaded.training->extra);
  tenant.load_training(std::move(*loaded.training));
  return {std::move(extra)};
}

}  // namespace twinkle::engine
