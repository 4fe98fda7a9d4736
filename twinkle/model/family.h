// A model family: how its config.json reads. One file and one line of families.def each. Tensor
// names are Hugging Face's for llama-like decoders: model.embed_tokens,
// model.layers.N.{input_layernorm, self_attn.{q,k,v,o}_proj, ...}.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/model/spec.h"

namespace twinkle::model {

struct Family {
  std::string name;                        // config.json's model_type
  std::vector<std::string> architectures;  // config.json's architectures that it serves
  DecoderSpec (*spec)(const Json& config);
};

// The spec of a parsed config.json. Error kInvalid: an architecture, rope kind or activation that
// is not supported (the text lists those that are), or a size that is missing or impossible.
// value_head: with one, new on a causal model, or that of a token or sequence classifier with one
// label.
DecoderSpec read_spec(const Json& config, bool value_head = false);

// The config.json of a model that is saved with its value head: transformers' token classifier with
// one label. `spec` is read_spec's of it.
void describe_value_head(JsonObject& config, const DecoderSpec& spec);

std::span<const Family> families();

// The part that the llama-like families share: sizes, norms, rope, windows, a SwiGLU MLP.
DecoderSpec llama_like(const Json& config);

// `rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` (before).
nn::RopeSpec read_rope(const Json& config);

}  // namespace twinkle::model
