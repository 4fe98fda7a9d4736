// For tests: a decoder of a hundred thousand random weights, written as a checkpoint and read back.
#pragma once
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/io/safetensors.h"
#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/model/decoder.h"
#include "twinkle/model/family.h"
#include "twinkle/model/weights/tensors.h"

namespace twinkle::sampler {

struct TinyOptions {
  std::string family = "llama";  // or "qwen3"
  at::ScalarType dtype = at::kFloat;
  int64_t vocab_size = 97, width = 96, hidden = 144, num_layers = 2;
  int64_t num_heads = 6, num_kv_heads = 2, head_dim = 16, max_positions = 512;
  float scale = 0.2f;  // the weights'; larger ones make sharper distributions
  int64_t window = 0;  // tokens; 0: none. qwen3 only
  at::Device device = at::kCPU;
  int64_t longrope = 0;  // longest sequences of its first kind, tokens; 0: another rope
  bool delta = false;    // odd layers mix by the gated delta rule, the others gate their output
};

class TinyDecoder {
 public:
  explicit TinyDecoder(const TinyOptions& o) : decoder_(make(o)) {}
  model::Decoder& operator*() { return decoder_; }
  model::Decoder* operator->() { return &decoder_; }

 private:
  static Json config(const TinyOptions& o) {
    JsonObject c{{"model_type", o.family},
                 {"vocab_size", o.vocab_size},
                 {"hidden_size", o.width},
                 {"intermediate_size", o.hidden},
                 {"num_hidden_layers", o.num_layers},
                 {"num_attention_heads", o.num_heads},
                 {"num_key_value_heads", o.num_kv_heads},
                 {"head_dim", o.head_dim},
                 {"max_position_embeddings", o.max_positions}};
    if (o.window > 0) {
      c["use_sliding_window"] = true;
      c["sliding_window"] = o.window;
      c["max_window_layers"] = 1;
    }
    return c;
  }

  static model::Decoder make(const TinyOptions& o) {
    model::DecoderSpec spec = model::read_spec(config(o));
    if (o.longrope > 0) {
      spec.rope.kind = nn::RopeKind::kLongRope;
      spec.rope.original_max_position = o.longrope;
      spec.rope.short_factor.assign(static_cast<size_t>(o.head_dim / 2), 1.0);
      spec.rope.long_factor.assign(static_cast<size_t>(o.head_dim / 2), 3.0);
    }
    constexpr model::DeltaSpec kDelta{
        .num_key_heads = 2, .num_value_heads = 4, .key_dim = 8, .value_dim = 12};
    for (size_t i = 0; o.delta && i < spec.layers.size(); ++i) {
      if (i % 2 == 1) {
        spec.layers[i].mixer = kDelta;
      } else {
        spec.layers[i].attention().output_gate = true;
      }
    }
    at::Generator random = at::make_generator<at::CPUGeneratorImpl>(5);
    std::vector<std::pair<std::string, at::Tensor>> weights;
    const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
      weights.emplace_back(name + ".weight", at::randn({out, in}, random) * o.scale);
    };
    const auto norm = [&](const std::string& name, int64_t width) {
      weights.emplace_back(name + ".weight", at::rand({width}, random) + 0.5);
    };
    const int64_t q = o.num_heads * o.head_dim, kv = o.num_kv_heads * o.head_dim;
    linear("model.embed_tokens", o.vocab_size, o.width);
    for (int64_t i = 0; i < o.num_layers; ++i) {
      const std::string path = "model.layers." + std::to_string(i) + ".";
      norm(path + "input_layernorm", o.width);
      norm(path + "post_attention_layernorm", o.width);
      if (o.delta && i % 2 == 1) {
        const auto more = [&](const char* name, at::IntArrayRef sizes) {
          weights.emplace_back(path + "linear_attn." + name, at::randn(sizes, random) * 0.5);
        };
        linear(path + "linear_attn.in_proj_qkv", 80, o.width);
        linear(path + "linear_attn.in_proj_z", 48, o.width);
        linear(path + "linear_attn.in_proj_b", 4, o.width);
        linear(path + "linear_attn.in_proj_a", 4, o.width);
        linear(path + "linear_attn.out_proj", o.width, 48);
        more("conv1d.weight", {80, 1, 4});
        more("A_log", {4});
        more("dt_bias", {4});
        norm(path + "linear_attn.norm", 12);
      } else {
        linear(path + "self_attn.q_proj", o.delta ? 2 * q : q, o.width);
        linear(path + "self_attn.k_proj", kv, o.width);
        linear(path + "self_attn.v_proj", kv, o.width);
        linear(path + "self_attn.o_proj", o.width, q);
        if (o.family == "qwen3") {
          norm(path + "self_attn.q_norm", o.head_dim);
          norm(path + "self_attn.k_norm", o.head_dim);
        }
      }
      linear(path + "mlp.gate_proj", o.hidden, o.width);
      linear(path + "mlp.up_proj", o.hidden, o.width);
      linear(path + "mlp.down_proj", o.width, o.hidden);
    }
    norm("model.norm", o.width);
    linear("lm_head", o.vocab_size, o.width);
    const ScratchDir dir;
    std::vector<TensorView> views;
    for (const auto& [name, value] : weights) views.push_back(model::view_of(name, value));
    write_safetensors(dir / "model.safetensors", views);
    return model::Decoder(spec, Checkpoint::open(dir.path()), o.dtype, o.device);
  }

  model::Decoder decoder_;
};

}  // namespace twinkle::sampler
