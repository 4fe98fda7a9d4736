// For tests: GGUF files, written value by value.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "twinkle/io/checkpoint.h"
#include "twinkle/io/gguf/gguf.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {

template <class T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string raw_text(const std::string& text) { return raw<uint64_t>(text.size()) + text; }

inline std::string floats(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) bytes += raw(value);
  return bytes;
}

inline constexpr uint16_t kHalf = 0x3800, kOne = 0x3C00, kMinusTwo = 0xC000;  // as F16

// A GGUF file in the making.
struct Gguf {
  void add(const std::string& key, uint32_t type, const std::string& value) {
    metadata += raw_text(key) + raw(type) + value;
    ++num_keys;
  }
  void add(const std::string& key, const std::string& value) { add(key, 8, raw_text(value)); }
  void add(const std::string& key, uint32_t value) { add(key, 4, raw(value)); }
  void add(const std::string& key, float value) { add(key, 6, raw(value)); }

  // `dims` innermost first, as the file has them.
  void tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
              const std::string& bytes) {
    infos += raw_text(name) + raw<uint32_t>(dims.size());
    for (const uint64_t dim : dims) infos += raw(dim);
    infos += raw(type) + raw<uint64_t>(data.size());
    data += bytes;
    data.resize((data.size() + 31) / 32 * 32);
    ++num_tensors;
  }

  std::string file() const {
    std::string text = "GGUF" + raw<uint32_t>(3) + raw(num_tensors) + raw(num_keys);
    text += metadata + infos;
    text.resize((text.size() + 31) / 32 * 32);
    return text + data;
  }

  std::string metadata, infos, data;
  uint64_t num_keys = 0, num_tensors = 0;
};

// One layer of width 4 with two heads of 2, one of keys.
inline Gguf tiny(const std::string& architecture) {
  Gguf gguf;
  gguf.add("general.architecture", architecture);
  const std::string prefix = architecture + ".";
  gguf.add(prefix + "embedding_length", uint32_t{8});
  gguf.add(prefix + "block_count", uint32_t{1});
  gguf.add(prefix + "feed_forward_length", uint32_t{3});
  gguf.add(prefix + "context_length", uint32_t{64});
  gguf.add(prefix + "attention.head_count", uint32_t{2});
  gguf.add(prefix + "attention.head_count_kv", uint32_t{1});
  gguf.add(prefix + "attention.layer_norm_rms_epsilon", 1e-5F);
  gguf.add(prefix + "rope.freq_base", 1e5F);
  gguf.add("tokenizer.ggml.eos_token_id", uint32_t{2});
  gguf.tensor("token_embd.weight", {8, 2}, 0, floats(std::vector<float>(16, 0.5F)));
  return gguf;
}

inline std::vector<float> values_of(GgufType type, const std::string& bytes, int64_t count) {
  std::vector<float> out(count);
  dequantize(type, std::as_bytes(std::span(bytes.data(), bytes.size())), out);
  return out;
}

// Opens a file of these bytes; the error without the file's name.
inline std::string error_of_file(const std::string& bytes) {
  static const ScratchDir dir(memory_folder());  // one for many calls
  write_text(dir / "x.gguf", bytes);
  std::string text = error_of([&] { Checkpoint::open(dir / "x.gguf"); });
  const std::string file = (dir / "x.gguf").string();
  const size_t found = text.find(file);
  if (found == text.npos) return text;
  return text.substr(0, found).append("F").append(text.substr(found + file.size()));
}

}  // namespace twinkle
