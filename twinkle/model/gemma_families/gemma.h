// Shared by Gemma 2 and Gemma 3 (Gemma team 2024, 2025): embeddings times the root of their width,
// zero-centred norms before and behind each block, an MLP with gelu, attention whose scores have a
// scale of their own, and windows on layers by their type.
#pragma once
#include "twinkle/model/family.h"

namespace twinkle::model {

// `config` is a text model's, with the family's defaults; its rope is as llama_like() reads it.
// Where `layer_types` is absent, all layers slide but each `pattern`-th. Error kInvalid: a field
// that llama_like() refuses, another activation than gelu_pytorch_tanh, types of layers that are
// not known, a scalar or a cap that is not above 0.
DecoderSpec gemma_like(const Json& config, int64_t pattern);

// A softcap, 0 where the field is null.
double read_softcap(const Json& config, std::string_view key);

}  // namespace twinkle::model
