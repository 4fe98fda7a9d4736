// For tests: a random decoder of a few thousand weights, written as a Hugging Face directory.
#pragma once
#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/io/safetensors.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/model/blocks/layer.h"
#include "twinkle/model/family.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::model {

inline JsonObject tiny_config(const std::string& family = "llama") {
  JsonObject c;
  c["model_type"] = family;
  for (const Family& known : families()) {
    if (known.name == family) c["architectures"] = JsonArray{Json(known.architectures[0])};
  }
  c["vocab_size"] = 131;
  c["hidden_size"] = 48;
  c["num_hidden_layers"] = 2;
  c["intermediate_size"] = 80;
  c["num_attention_heads"] = 4;
  c["num_key_value_heads"] = 2;
  c["head_dim"] = 12;
  c["max_position_embeddings"] = 256;
  c["rms_norm_eps"] = 1e-5;
  c["rope_theta"] = 10000.0;
  c["tie_word_embeddings"] = true;
  c["eos_token_id"] = 2;
  return c;
}

// The weights that any family's config asks for, by the checkpoint's names.
inline std::map<std::string, at::Tensor> drawn_weights(const Json& config) {
  const DecoderSpec spec = read_spec(config);
  std::map<std::string, at::Tensor> w;
  const auto draw = [&](const std::string& name, const std::vector<int64_t>& shape) {
    const bool norm = shape.size() == 1 && name.ends_with("norm.weight");
    const double inputs = shape.size() == 1 ? 100 : static_cast<double>(shape.back());
    return w[name] = at::randn(shape) * (1.5 / std::sqrt(inputs)) + (norm ? 1 : 0);
  };
  Parts parts(draw, spec.layout);
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    parts.path = "model.layers." + std::to_string(i) + ".";
    Layer(spec, spec.layers[i], parts);
  }
  const int64_t v = spec.vocab_size, d = spec.hidden_size;
  draw(spec.layout.name("model.embed_tokens.weight"), {v, d});
  draw(spec.layout.name("model.norm.weight"), {d});
  if (!spec.tied_head) draw(spec.layout.name("lm_head.weight"), {v, d});
  return w;
}

// The weights that the config asks for, normal with deviation 0.3 / sqrt(inputs)-like sizes.
inline std::map<std::string, at::Tensor> tiny_weights(const JsonObject& config, uint64_t seed = 1) {
  at::manual_seed(seed);
  const Json c = config;
  const auto size = [&](const char* key) { return get<int64_t>(c, key); };
  const int64_t d = size("hidden_size"), hd = size("head_dim"),
                q = size("num_attention_heads") * hd, kv = size("num_key_value_heads") * hd,
                f = size("intermediate_size");
  const std::string family = get<std::string>(c, "model_type");
  std::map<std::string, at::Tensor> w;
  const auto linear = [&](const std::string& path, int64_t out, int64_t in, bool bias) {
    w[path + ".weight"] = at::randn({out, in}) * (1.5 / std::sqrt(static_cast<double>(in)));
    if (bias) w[path + ".bias"] = at::randn({out}) * 0.1;
  };
  const auto norm = [&](const std::string& path, int64_t n) {
    w[path + ".weight"] = 1 + at::randn({n}) * 0.1;
  };
  if (family != "llama" && family != "qwen2" && family != "qwen3") return drawn_weights(c);
  w["model.embed_tokens.weight"] = at::randn({size("vocab_size"), d}) * 0.5;
  for (int64_t i = 0; i < size("num_hidden_layers"); ++i) {
    const std::string path = "model.layers." + std::to_string(i) + ".";
    norm(path + "input_layernorm", d);
    norm(path + "post_attention_layernorm", d);
    linear(path + "self_attn.q_proj", q, d, family == "qwen2");
    linear(path + "self_attn.k_proj", kv, d, family == "qwen2");
    linear(path + "self_attn.v_proj", kv, d, family == "qwen2");
    linear(path + "self_attn.o_proj", d, q, false);
    if (family == "qwen3") {
      norm(path + "self_attn.q_norm", hd);
      norm(path + "self_attn.k_norm", hd);
    }
    linear(path + "mlp.gate_proj", f, d, false);
    linear(path + "mlp.up_proj", f, d, false);
    linear(path + "mlp.down_proj", d, f, false);
  }
  norm("model.norm", d);
  if (!get<bool>(c, "tie_word_embeddings")) linear("lm_head", size("vocab_size"), d, false);
  return w;
}

inline void write_tiny(const std::filesystem::path& directory, const JsonObject& config,
                       const std::map<std::string, at::Tensor>& weights) {
  std::vector<TensorView> views;
  for (const auto& [name, t] : weights) views.push_back(view_of(name, t));
  write_model(directory, views);
  write_text(directory / "config.json", pretty(config));
}

// A directory that goes with the object.
class TinyModel {
 public:
  explicit TinyModel(const JsonObject& config = tiny_config()) {
    write_tiny(dir_.path(), config, tiny_weights(config));
  }
  std::string path() const { return dir_.path().string(); }

 private:
  ScratchDir dir_;
};

}  // namespace twinkle::model
