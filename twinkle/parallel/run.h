// A run of elements, and how those of a piece's weights follow each other. No tensor.
#pragma once
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>

namespace twinkle::parallel {

// Elements [begin, end), of a weight in row-major order or of a piece.
struct Run {
  int64_t begin = 0, end = 0;

  int64_t size() const { return end - begin; }
  // The common part of both; empty runs begin anywhere.
  Run in(const Run& other) const {
    const int64_t first = std::max(begin, other.begin);
    return {first, std::max(first, std::min(end, other.end))};
  }
  bool operator==(const Run&) const = default;
};

// `count` elements and what fills their last cache line: weights begin on one, as elsewhere.
inline int64_t whole_lines(int64_t count, at::ScalarType type) {
  constexpr int64_t kLine = 64;  // bytes
  const int64_t unit = kLine / static_cast<int64_t>(c10::elementSize(type));
  return (count + unit - 1) / unit * unit;
}

// Elements of each of n equal parts of a piece; the last ones may hold fewer that mean something.
inline int64_t part_of(int64_t count, int n, at::ScalarType type) {
  return whole_lines((count + n - 1) / n, type);
}

}  // namespace twinkle::parallel
