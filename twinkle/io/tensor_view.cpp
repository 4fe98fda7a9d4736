#include "twinkle/io/tensor_view.h"

#include <array>

namespace twinkle {
namespace {

struct Row {
  Dtype dtype;
  std::string_view name;
  int64_t size;
};

constexpr std::array<Row, 11> kRows = {{{Dtype::kF64, "F64", 8},
                                        {Dtype::kF32, "F32", 4},
                                        {Dtype::kF16, "F16", 2},
                                        {Dtype::kBF16, "BF16", 2},
                                        {Dtype::kI64, "I64", 8},
                                        {Dtype::kI32, "I32", 4},
                                        {Dtype::kI16, "I16", 2},
                                        {Dtype::kI8, "I8", 1},
                                        {Dtype::kU8, "U8", 1},
                                        {Dtype::kBool, "BOOL", 1},
                                        {Dtype::kF8E4M3, "F8_E4M3", 1}}};

}  // namespace

int64_t size_of(Dtype dtype) { return kRows.at(static_cast<size_t>(dtype)).size; }

std::string_view name_of(Dtype dtype) { return kRows.at(static_cast<size_t>(dtype)).name; }

std::optional<Dtype> dtype_named(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.dtype;
  }
  return std::nullopt;
}

namespace {

// The product of `unit` and the dims; strides are products without the dims that are 0.
std::optional<int64_t> product(int64_t unit, std::span<const int64_t> shape) {
  bool empty = false;
  for (const int64_t dim : shape) {
    if (dim < 0 || (dim > 0 && __builtin_mul_overflow(unit, dim, &unit))) return std::nullopt;
    empty = empty || dim == 0;
  }
  return empty ? 0 : unit;
}

}  // namespace

std::optional<int64_t> num_elements(std::span<const int64_t> shape) { return product(1, shape); }

std::optional<int64_t> bytes_of(Dtype dtype, std::span<const int64_t> shape) {
  return product(size_of(dtype), shape);
}

std::string shape_text(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t dim : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dim);
  }
  return text + "]";
}

}  // namespace twinkle
