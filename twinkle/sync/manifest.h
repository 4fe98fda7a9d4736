// The tensors of one rank as it tells them to the other ranks: names, shapes, types, and which
// elements it holds. Values; knows no tensors.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/base/fields.h"

namespace twinkle::sync {

// Elements [first, last) of a tensor, its rows one after the other.
struct Slice {
  int64_t first = 0, last = 0;

  bool operator==(const Slice&) const = default;
  static constexpr auto fields() {
    return std::tuple{field(1, "first", &Slice::first), field(2, "last", &Slice::last)};
  }
};

struct Entry {
  std::string name;
  std::vector<int64_t> shape;  // shape of the whole tensor
  std::string dtype;           // "bfloat16", "float32", ...
  int64_t element_size = 0;    // bytes
  std::vector<Slice> slices;   // that this rank holds, or wants; in order, none in another

  int64_t num_elements() const;

  bool operator==(const Entry&) const = default;
  static constexpr auto fields() {
    return std::tuple{field(1, "name", &Entry::name), field(2, "shape", &Entry::shape),
                      field(3, "dtype", &Entry::dtype),
                      field(4, "element_size", &Entry::element_size),
                      field(5, "slices", &Entry::slices)};
  }
};

using Manifest = std::vector<Entry>;

// Error kInvalid: a tensor that the model's ranks, the first `num_senders` of `ranks`, and the
// sampler's do not both have, or have in another shape or type. The first one is named.
void require_same_tensors(const std::vector<Manifest>& ranks, int num_senders);

}  // namespace twinkle::sync
