// A dense llama, qwen2 or qwen3 in GGUF's words: its sizes, and its tensors by name and type.
#pragma once
#include <string>
#include <vector>

#include "twinkle/io/gguf/gguf_writer.h"
#include "twinkle/model/spec.h"

namespace twinkle::cli {

// Architecture and sizes, as llama.cpp reads them. Error kInvalid: arithmetic that its architecture
// does not have, by name.
GgufMetadata gguf_sizes(const model::DecoderSpec& spec, const std::string& name, GgufType type);

// The tensors of the model under GGUF's names: matrices in `type`, vectors in F32, llama's q and k
// in their order there, and rope_freqs.weight where the rope is Llama 3's. Error kInvalid: a tensor
// that has no name there.
std::vector<GgufOutput> gguf_tensors(const model::DecoderSpec& spec,
                                     const std::vector<StoredTensor>& weights, GgufType type);

}  // namespace twinkle::cli
