#include "twinkle/cli/export/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::cli {
namespace {

constexpr std::string_view kRefused = "cli: --to gguf: ";

void check_layers(const model::DecoderSpec& spec) {
  const model::AttentionSpec& first = spec.layers.at(0).attention();
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const model::AttentionSpec& a = spec.layers[i].attention();
    require(a.window == 0, Code::kInvalid, kRefused, "layer ", i, " has a sliding window of ",
            a.window, " tokens, which llama.cpp does not have for ", spec.family,
            "; export --to merged");
    require(a.num_kv_heads == first.num_kv_heads && a.head_dim == first.head_dim, Code::kInvalid,
            kRefused, "layer ", i, " has other heads than layer 0; export --to merged");
    require(spec.layers[i].gated_mlp().activation == nn::Activation::kSilu, Code::kInvalid,
            kRefused, "layer ", i, " has another activation than silu, llama.cpp's of ",
            spec.family, "; export --to merged");
  }
}

void add_rope_scaling(const nn::RopeSpec& rope, const std::string& prefix, GgufMetadata& out) {
  const nn::RopeSpec known;
  using enum nn::RopeKind;
  if (rope.kind == kDefault || rope.kind == kLlama3) return;
  const bool as_llama_cpp = rope.beta_fast == known.beta_fast &&
                            rope.beta_slow == known.beta_slow && rope.truncate &&
                            !rope.attention_factor && !rope.mscale && !rope.mscale_all_dim;
  require(rope.kind != kLongRope && (rope.kind != kYarn || as_llama_cpp), Code::kInvalid, kRefused,
          "the model's rope is ",
          rope.kind == kLongRope ? "longrope" : "yarn with factors of its own",
          "; known are default, linear, llama3, and yarn with a factor alone: export --to merged");
  out.emplace_back(prefix + "rope.scaling.type",
                   std::string(rope.kind == kYarn ? "yarn" : "linear"));
  out.emplace_back(prefix + "rope.scaling.factor", static_cast<float>(rope.factor));
  if (rope.kind == kYarn)
    out.emplace_back(prefix + "rope.scaling.original_context_length",
                     static_cast<uint32_t>(rope.original_max_position));
}

StoredTensor llama3_factors(const nn::RopeSpec& rope) {
  const Llama3Scaling scaling{rope.factor, rope.low_freq_factor, rope.high_freq_factor,
                              static_cast<double>(rope.original_max_position)};
  const int64_t count = rope.rotary_dim / 2;
  std::vector<float> factors;
  for (int64_t i = 0; i < count; ++i)
    factors.push_back(static_cast<float>(
        scaling.of(std::pow(rope.theta, -static_cast<double>(i) / static_cast<double>(count)))));
  return {.name = "rope_freqs.weight",
          .dtype = Dtype::kF32,
          .shape = {count},
          .reader = [factors = std::move(factors)](int64_t offset, std::span<std::byte> out) {
            std::memcpy(
                out.data(),
                std::as_bytes(std::span(factors)).subspan(static_cast<size_t>(offset)).data(),
                out.size());
          }};
}

}  // namespace

GgufMetadata gguf_sizes(const model::DecoderSpec& spec, const std::string& name, GgufType type) {
  check_layers(spec);
  const model::AttentionSpec& attention = spec.layers.at(0).attention();
  require(spec.rope.rotary_dim == attention.head_dim, Code::kInvalid, kRefused, "rope turns ",
          spec.rope.rotary_dim, " of a head's ", attention.head_dim,
          " dims, llama.cpp turns all; export --to merged");
  const std::string prefix = spec.family + ".";
  constexpr uint32_t kMostlyF16 = 1, kMostlyQ8 = 7;  // llama_ftype
  GgufMetadata out{{"general.architecture", spec.family},
                   {"general.type", std::string("model")},
                   {"general.name", name},
                   {"general.file_type", type == GgufType::kQ8_0 ? kMostlyQ8 : kMostlyF16}};
  if (type == GgufType::kQ8_0) out.emplace_back("general.quantization_version", uint32_t{2});
  const auto size = [&](const char* key, int64_t value) {
    out.emplace_back(prefix + key, static_cast<uint32_t>(value));
  };
  size("vocab_size", spec.vocab_size);
  size("context_length", spec.max_positions);
  size("embedding_length", spec.hidden_size);
  size("block_count", spec.num_layers());
  size("feed_forward_length", spec.layers.at(0).gated_mlp().intermediate_size);
  size("attention.head_count", attention.num_heads);
  size("attention.head_count_kv", attention.num_kv_heads);
  size("attention.key_length", attention.head_dim);
  size("attention.value_length", attention.head_dim);
  size("rope.dimension_count", attention.head_dim);
  out.emplace_back(prefix + "attention.layer_norm_rms_epsilon", static_cast<float>(spec.norm.eps));
  out.emplace_back(prefix + "rope.freq_base", static_cast<float>(spec.rope.theta));
  add_rope_scaling(spec.rope, prefix, out);
  return out;
}

std::vector<GgufOutput> gguf_tensors(const model::DecoderSpec& spec,
                                     const std::vector<StoredTensor>& weights, GgufType type) {
  const model::AttentionSpec& attention = spec.layers.at(0).attention();
  std::vector<GgufOutput> out;
  for (StoredTensor tensor : weights) {
    // Computed from the config; older files of transformers hold it.
    if (tensor.name.ends_with("rotary_emb.inv_freq")) continue;
    const std::string name = gguf_name(tensor.name);
    require(!name.empty(), Code::kInvalid, kRefused, "the model has the tensor '", tensor.name,
            "', for which llama.cpp's ", spec.family, " has no place; export --to merged");
    const bool q = name.find(".attn_q.") != name.npos, k = name.find(".attn_k.") != name.npos;
    tensor.name = name;
    if (spec.family == "llama" && (q || k))
      tensor = interleaved(std::move(tensor), q ? attention.num_heads : attention.num_kv_heads);
    const bool matrix = tensor.shape.size() > 1;
    out.push_back({std::move(tensor), matrix ? type : GgufType::kF32});
  }
  if (spec.rope.kind == nn::RopeKind::kLlama3)
    out.push_back({llama3_factors(spec.rope), GgufType::kF32});
  return out;
}

}  // namespace twinkle::cli
