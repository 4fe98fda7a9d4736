// Writes GGUF files (version 3): metadata, then tensors, of which little is held at a time. Knows
// no model and no torch; gguf.h reads what this writes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/io/gguf/gguf.h"

namespace twinkle {

using GgufValue = std::variant<uint32_t, float, bool, std::string, std::vector<int32_t>,
                               std::vector<std::string>>;
using GgufMetadata = std::vector<std::pair<std::string, GgufValue>>;

// A tensor to write under its name, with its values (F32, F16 or BF16) in blocks of `type`.
struct GgufOutput {
  StoredTensor values;
  GgufType type = GgufType::kF16;  // F32, F16 or Q8_0
};

// Whole blocks of `type`: F32; F16, the nearest with ties to even; Q8_0 as ggml defines it, an F16
// scale of a 127th of the largest value of each block and 32 bytes. `out` has their size. True: no
// number is beyond what the type holds.
bool quantize(GgufType type, std::span<const float> values, std::span<std::byte> out);

// Writes one file into the staging folder of an AtomicDirectory. Error kInvalid: a key or name
// twice, a tensor whose rows are no whole blocks, one with a number beyond its type; AtomicFile's,
// and those of reading.
void write_gguf(const std::filesystem::path& file, const GgufMetadata& metadata,
                std::span<const GgufOutput> tensors);

// The inverse of hugging_face_name; empty: a dense llama, qwen2 or qwen3 has no such tensor.
std::string gguf_name(std::string_view hugging_face_name);

// The rows of llama's q and k, weights or biases, in GGUF's order: of each head (0, half, 1,
// half + 1, ...), for interleaved rope.
StoredTensor interleaved(StoredTensor tensor, int64_t num_heads);

// Llama 3's factor of a frequency, which rope_freqs.weight has for each pair of a head's dims: 1
// for short waves, `factor` for long ones, a blend between.
struct Llama3Scaling {
  double factor, low, high, context;
  double of(double frequency) const;
};

// The metadata of the tokenizer in a folder of Hugging Face files: tokens, types, merges, special
// ids, chat template, and the name by which llama.cpp knows how it splits texts. `vocab_size`: rows
// of the embedding; ids without a token get unused ones. Error kNotFound: no tokenizer.json;
// kInvalid: no byte-level BPE, another split than GPT-2's, SmolLM's, Llama 3's or Qwen2's, more
// tokens than rows.
GgufMetadata gguf_tokenizer(const std::filesystem::path& folder, int64_t vocab_size);

}  // namespace twinkle
