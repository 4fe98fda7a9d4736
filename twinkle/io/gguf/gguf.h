// The GGUF format (versions 2 and 3): metadata, then tensors in blocks of quantised values. Every
// length, offset and type is checked before use, and no tensor is read unasked. Knows the three
// architectures whose tensors it can name the Hugging Face way (llama, qwen2, qwen3), and no torch.
// An open file may be read from any thread. Format:
// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/io/stored_tensor.h"

namespace twinkle {

enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kBF16 = 30 };

// Values are stored in blocks.
struct GgufBlock {
  int64_t values = 0;
  int64_t bytes = 0;
};

GgufBlock block_of(GgufType type);

struct GgufTensor {
  std::string name;  // as in the file: "blk.0.attn_q.weight"
  GgufType type = GgufType::kF32;
  std::vector<int64_t> shape;  // outermost dim first, the reverse of the file's order
  int64_t begin = 0;           // offset of its blocks, bytes from the start of the file
  int64_t num_bytes = 0;
};

class GgufFile {
 public:
  // Error kNotFound: no such file; kInvalid: no GGUF, another version, truncated, a name twice,
  // text that is not UTF-8, more than 2^22 values of metadata, 2^20 tensors or 256 MiB before the
  // tensors, tensors that overlap, have a dim of 0 or a type other than F32, F16, BF16, Q4_0, Q4_1
  // and Q8_0.
  explicit GgufFile(const std::filesystem::path& file);

  // Key to value: integers, doubles (a float's shortest decimal), booleans, strings, arrays.
  const JsonObject& metadata() const { return metadata_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  const GgufTensor* find(std::string_view name) const;  // or nullptr
  const std::filesystem::path& path() const { return file_->path(); }
  const std::shared_ptr<const File>& file() const { return file_; }

 private:
  std::shared_ptr<const File> file_;
  JsonObject metadata_;
  std::vector<GgufTensor> tensors_;
};

// The values of whole blocks, in fp32: the definition of each type. `out` has their number.
void dequantize(GgufType type, std::span<const std::byte> blocks, std::span<float> out);

// Fills `out` with the tensor's values from the one of number `first` on. Error kInvalid:
// File::read_at's.
void read_values(const File& file, const GgufTensor& tensor, int64_t first, std::span<float> out);

// Nearest BF16, ties to even; a NaN stays one.
uint16_t bf16_of(float value);

// The Hugging Face name ("model.layers.0.self_attn.q_proj.weight") of a tensor, empty for one that
// has none.
std::string hugging_face_name(std::string_view gguf_name);

// The same model's config.json: model_type, sizes, rope, token ids; torch_dtype is "bfloat16".
// Error kInvalid: an architecture other than llama, qwen2 and qwen3, a missing size, a rope scaling
// that it can't name.
Json gguf_config(const GgufFile& file);
Json gguf_config(const std::filesystem::path& file);

// The tokenizer as the files that tokenizers and transformers read, by name: tokenizer.json,
// tokenizer_config.json, generation_config.json. Error kInvalid: another one than a byte-level BPE
// with SmolLM's split, or one that adds tokens to a text.
JsonObject gguf_bpe(const std::filesystem::path& file);

// Writes the folder `dir` as a whole: config.json, model.safetensors with every tensor in BF16, and
// `texts`, files by their names.
void convert_gguf(const std::filesystem::path& file, const std::filesystem::path& dir,
                  const std::map<std::string, std::string>& texts = {});

}  // namespace twinkle
