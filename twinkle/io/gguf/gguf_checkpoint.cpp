// GGUF tensors as a checkpoint: Hugging Face names, llama's rows in their order, quantised values
// in BF16.
#include <algorithm>
#include <cstring>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/checkpoint_source.h"
#include "twinkle/io/gguf/gguf.h"
#include "twinkle/io/safetensors.h"

namespace twinkle {
namespace {

// The type that holds the tensor's values: its own where it is not quantised.
Dtype dtype_of(GgufType type) {
  if (type == GgufType::kF32) return Dtype::kF32;
  return type == GgufType::kF16 ? Dtype::kF16 : Dtype::kBF16;
}

bool is_quantized(GgufType type) {
  return type == GgufType::kQ4_0 || type == GgufType::kQ4_1 || type == GgufType::kQ8_0;
}

// The tensor's values in BF16, in the file's order.
StoredTensor::Reader in_bf16(std::shared_ptr<const File> file, const GgufTensor& tensor) {
  return [file = std::move(file), tensor](int64_t offset, std::span<std::byte> out) {
    constexpr size_t kChunk = size_t{1} << 17;  // bytes
    std::vector<float> values;
    for (; !out.empty(); out = out.subspan(2 * values.size())) {
      values.resize(std::min(out.size(), kChunk) / 2);
      read_values(*file, tensor, offset / 2, values);
      for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t half = bf16_of(values[i]);
        std::memcpy(out.data() + 2 * i, &half, 2);
      }
      offset += 2 * std::ssize(values);
    }
  };
}

// The llama layout has a head's rows in the order of interleaved rope, (0, half, 1, half + 1, ...);
// back to (0, 1, ..., half, half + 1, ...).
StoredTensor::Reader uninterleaved(StoredTensor::Reader rows, int64_t row_bytes, int64_t half) {
  return [rows = std::move(rows), row_bytes, half](int64_t offset, std::span<std::byte> out) {
    while (!out.empty()) {
      const int64_t to = offset / row_bytes, skipped = offset % row_bytes;
      const int64_t head = to / (2 * half), j = to / half % 2, i = to % half;
      const int64_t from = head * 2 * half + 2 * i + j;
      const int64_t count = std::min(row_bytes - skipped, std::ssize(out));
      rows(from * row_bytes + skipped, out.first(static_cast<size_t>(count)));
      offset += count;
      out = out.subspan(static_cast<size_t>(count));
    }
  };
}

// The heads whose rows are interleaved, 0: rows are in order.
int64_t num_interleaved_heads(const GgufFile& file, const GgufTensor& tensor, const Json& config) {
  const bool q = tensor.name.find(".attn_q.") != std::string::npos;
  const bool k = tensor.name.find(".attn_k.") != std::string::npos;
  if (get<std::string>(config, "model_type") != "llama" || (!q && !k)) return 0;
  const auto heads = get<int64_t>(config, q ? "num_attention_heads" : "num_key_value_heads");
  const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
  require(rows > 0 && rows % (2 * heads) == 0, Code::kInvalid, "io: ", file.path().string(),
          ": tensor '", tensor.name, "' has ", rows, " rows, they must be a multiple of twice ",
          heads, " heads");
  return heads;
}

// `all_bf16`: what is not quantised is read as BF16, too.
StoredTensor stored(const GgufFile& file, const GgufTensor& tensor, const Json& config,
                    bool all_bf16) {
  StoredTensor out{.name = hugging_face_name(tensor.name),
                   .dtype = all_bf16 ? Dtype::kBF16 : dtype_of(tensor.type),
                   .shape = tensor.shape};
  require(!out.name.empty(), Code::kInvalid, "io: ", file.path().string(), ": tensor '",
          tensor.name, "' does not belong to a dense llama, qwen2 or qwen3 model");
  require(bytes_of(out.dtype, out.shape).has_value(), Code::kInvalid, "io: ", file.path().string(),
          ": tensor '", tensor.name, "' has the shape ", shape_text(out.shape), ", too large");
  const bool as_it_is = dtype_of(tensor.type) == out.dtype && !is_quantized(tensor.type);
  out.reader = as_it_is ? read_from(file.file(), tensor.begin) : in_bf16(file.file(), tensor);
  if (const int64_t heads = num_interleaved_heads(file, tensor, config); heads > 0) {
    const int64_t rows = tensor.shape[0];
    out.reader = uninterleaved(std::move(out.reader), out.num_bytes() / rows, rows / heads / 2);
  }
  return out;
}

std::vector<StoredTensor> stored_tensors(const GgufFile& file, const Json& config, bool all_bf16) {
  std::vector<StoredTensor> out;
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == "rope_freqs.weight") continue;  // gguf_config has made it a rope scaling
    out.push_back(stored(file, tensor, config, all_bf16));
  }
  return out;
}

}  // namespace

std::unique_ptr<Checkpoint::Source> open_gguf(const std::filesystem::path& path) {
  const GgufFile file(path);
  auto source = std::make_unique<Checkpoint::Source>();
  const Json config = gguf_config(file);
  source->config = [config] { return config; };
  for (StoredTensor& tensor : stored_tensors(file, config, false)) source->add(std::move(tensor));
  for (const auto& [key, value] : file.metadata()) {
    if (value.is_string()) source->metadata.emplace(key, value.get_string());
  }
  return source;
}

void convert_gguf(const std::filesystem::path& path, const std::filesystem::path& dir,
                  const std::map<std::string, std::string>& texts) {
  const GgufFile file(path);
  const Json config = gguf_config(file);
  const std::vector<StoredTensor> tensors = stored_tensors(file, config, true);
  AtomicDirectory out(dir);
  write_file_atomically(out.staging() / "config.json", pretty(config));
  copy_model(out.staging(), tensors);
  for (const auto& [name, text] : texts) write_file_atomically(out.staging() / name, text);
  out.commit();
}

}  // namespace twinkle
