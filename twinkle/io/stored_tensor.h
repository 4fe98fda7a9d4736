// A tensor in a file: what is known of it before any of its bytes is read, and the way to read
// them, whole or in part. Keeps its file open. A value type; any thread may read.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/base/file.h"
#include "twinkle/io/tensor_view.h"

namespace twinkle {

struct StoredTensor {
  // As `read`, and never asked for nothing.
  using Reader = std::function<void(int64_t offset, std::span<std::byte> out)>;

  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<int64_t> shape;  // outermost dim first; its bytes fit into int64
  Reader reader = {};
  bool dequantised = false;  // F32 here for a type that this program does not keep

  int64_t num_bytes() const;

  // Fills `out` with the tensor's bytes from `offset` on: whole elements, inside the tensor. Rows
  // of the outermost dim follow each other. Error kInvalid: File::read_at's.
  void read(std::span<std::byte> out, int64_t offset = 0) const;

  // All of it, in memory that the view owns.
  TensorView load() const;
};

// The bytes of `file` from `begin` on.
StoredTensor::Reader read_from(std::shared_ptr<const File> file, int64_t begin);

// A tensor of F32 as one of BF16, each value rounded to the nearest when it is read, half way to
// the even one.
StoredTensor in_bf16(StoredTensor tensor);

// True for the same type with the same bytes; holds little of them at a time.
bool equal_bytes(const StoredTensor& a, const StoredTensor& b);

}  // namespace twinkle
