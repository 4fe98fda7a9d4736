// GGUF tensors as a checkpoint: Hugging Face names, llama's rows in their order, quantised values
// in BF16.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>
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

std::vector<std::byte> bf16_bytes(const GgufTensor& tensor) {
  std::vector<float> values(*num_elements(tensor.shape));
  dequantize(tensor, values);
  std::vector<std::byte> bytes(values.size() * 2);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = bf16_of(values[i]);
    std::memcpy(bytes.data() + 2 * i, &half, 2);
  }
  return bytes;
}

// The llama layout has a head's rows in the order of interleaved rope, (0, half, 1, half + 1, ...);
// back to (0, 1, ..., half, half + 1, ...).
std::vector<std::byte> uninterleaved(std::span<const std::byte> rows, int64_t num_rows,
                                     int64_t num_heads) {
  const int64_t size = num_rows == 0 ? 0 : std::ssize(rows) / num_rows;  // bytes of one row
  const int64_t half = num_rows / num_heads / 2;
  std::vector<std::byte> out(rows.size());
  for (int64_t to = 0; to < num_rows; ++to) {
    const int64_t head = to / (2 * half), j = to / half % 2, i = to % half;
    const int64_t from = head * 2 * half + 2 * i + j;
    std::memcpy(out.data() + to * size, rows.data() + from * size, size);
  }
  return out;
}

struct Slot {
  const GgufTensor* tensor = nullptr;
  int64_t num_heads = 0;  // of interleaved rows; 0: rows are in order
  mutable std::once_flag once;
  mutable std::vector<std::byte> bytes;  // empty where the file's own serve
};

struct GgufSource : Checkpoint::Source {
  explicit GgufSource(const std::filesystem::path& path) : file(path), config_(gguf_config(file)) {
    const bool interleaved = get<std::string>(config_, "model_type") == "llama";
    for (const GgufTensor& tensor : file.tensors()) {
      if (tensor.name == "rope_freqs.weight") continue;  // gguf_config has made it a rope scaling
      const std::string name = hugging_face_name(tensor.name);
      require(!name.empty(), Code::kInvalid, "io: ", path.string(), ": tensor '", tensor.name,
              "' is none of a dense llama, qwen2 or qwen3 model");
      names.push_back(name);
      Slot& slot = slots[name];
      slot.tensor = &tensor;
      if (interleaved) slot.num_heads = num_interleaved_heads(tensor);
    }
    for (const auto& [key, value] : file.metadata()) {
      if (value.is_string()) metadata.emplace(key, value.get_string());
    }
  }

  bool contains(const std::string& name) const override { return slots.contains(name); }
  Json config() const override { return config_; }

  TensorView at(const std::string& name) const override {
    const Slot& slot = slots.at(name);
    const GgufTensor& tensor = *slot.tensor;
    std::call_once(slot.once, [&] {
      if (is_quantized(tensor.type)) slot.bytes = bf16_bytes(tensor);
      if (slot.num_heads == 0) return;
      const std::span<const std::byte> rows =
          slot.bytes.empty() ? tensor.bytes : std::span<const std::byte>(slot.bytes);
      slot.bytes = uninterleaved(rows, tensor.shape[0], slot.num_heads);
    });
    return {.name = name,
            .dtype = dtype_of(tensor.type),
            .shape = tensor.shape,
            .bytes = slot.bytes.empty() ? tensor.bytes : std::span<const std::byte>(slot.bytes)};
  }

  int64_t num_interleaved_heads(const GgufTensor& tensor) const {
    const bool q = tensor.name.find(".attn_q.") != std::string::npos;
    const bool k = tensor.name.find(".attn_k.") != std::string::npos;
    if (!q && !k) return 0;
    const auto heads = get<int64_t>(config_, q ? "num_attention_heads" : "num_key_value_heads");
    const int64_t rows = tensor.shape.empty() ? 0 : tensor.shape[0];
    require(rows > 0 && rows % (2 * heads) == 0, Code::kInvalid, "io: ", file.path().string(),
            ": tensor '", tensor.name, "' has ", rows, " rows, they must be a multiple of twice ",
            heads, " heads");
    return heads;
  }

  GgufFile file;
  Json config_;
  std::unordered_map<std::string, Slot> slots;
};

TensorView in_bf16(TensorView view, std::vector<std::byte>& storage) {
  if (view.dtype == Dtype::kBF16) return view;
  const GgufTensor plain{.name = view.name,
                         .type = view.dtype == Dtype::kF32 ? GgufType::kF32 : GgufType::kF16,
                         .shape = view.shape,
                         .bytes = view.bytes};
  storage = bf16_bytes(plain);
  view.dtype = Dtype::kBF16;
  view.bytes = storage;
  return view;
}

}  // namespace

std::unique_ptr<Checkpoint::Source> open_gguf(const std::filesystem::path& file) {
  return std::make_unique<GgufSource>(file);
}

void convert_gguf(const std::filesystem::path& file, const std::filesystem::path& dir) {
  const Checkpoint checkpoint = Checkpoint::open(file);
  std::vector<std::vector<std::byte>> storage(checkpoint.names().size());
  std::vector<TensorView> views;
  for (const std::string& name : checkpoint.names()) {
    views.push_back(in_bf16(checkpoint.at(name), storage[views.size()]));
  }
  AtomicDirectory out(dir);
  write_file_atomically(out.staging() / "config.json", pretty(checkpoint.config()));
  write_model(out.staging(), views);
  out.commit();
}

}  // namespace twinkle
