// A named tensor's bytes as files hold them: row-major, little-endian, borrowed from an owner (a
// torch tensor, memory of its own) that must outlive the view. Knows no torch. A value type without
// locks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle {

// kF8E4M3: of checkpoints that io/fp8/fp8.h reads, which no reader of a Checkpoint sees.
enum class Dtype { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU8, kBool, kF8E4M3 };

// Bytes of one element.
int64_t size_of(Dtype dtype);

// The safetensors spelling: "F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL",
// "F8_E4M3".
std::string_view name_of(Dtype dtype);

// The inverse of name_of; nothing for any other text.
std::optional<Dtype> dtype_named(std::string_view name);

struct TensorView {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;              // outermost dim first; empty for a scalar
  std::span<const std::byte> bytes;        // may start at any address: aligned to nothing
  std::shared_ptr<const void> owner = {};  // owner of the bytes; none: they are somebody else's
};

// Elements of `shape`; nothing when a dim is negative or the product exceeds int64, that of the
// dims that are not 0, too.
std::optional<int64_t> num_elements(std::span<const int64_t> shape);

// The same of a tensor's bytes.
std::optional<int64_t> bytes_of(Dtype dtype, std::span<const int64_t> shape);

// "[3, 64]", for error texts.
std::string shape_text(std::span<const int64_t> shape);

}  // namespace twinkle
