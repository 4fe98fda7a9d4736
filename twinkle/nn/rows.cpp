#include "twinkle/nn/rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "twinkle/base/error.h"

namespace twinkle::nn {

void Rows::add(int64_t num_tokens, const Segment& segment) {
  cu_seqlens.push_back(cu_seqlens.back() + num_tokens);
  segments.push_back(segment);
}

size_t Rows::segment_of(int64_t row) const {
  return static_cast<size_t>(std::ranges::upper_bound(cu_seqlens, row) - cu_seqlens.begin() - 1);
}

Rows Rows::gather(std::span<const int64_t> rows) const {
  Rows out;
  size_t s = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i] != rows[i - 1] + 1 || rows[i] == cu_seqlens[s + 1]) {
      s = segment_of(rows[i]);
      out.add(0, segments[s]);
      out.segments.back().first += rows[i] - cu_seqlens[s];
    }
    ++out.cu_seqlens.back();
  }
  return out;
}

Rows Rows::gather_sequences(std::span<const int64_t> rows) const {
  Rows out;
  int64_t end = 0;  // end of the sequence of the row before
  for (const int64_t row : rows) {
    if (row >= end) {
      const size_t s = segment_of(row);
      end = cu_seqlens[s + 1];
      out.add(0, segments[s]);
      out.segments.back().first = 0;
    }
    ++out.cu_seqlens.back();
  }
  return out;
}

Rows Rows::part(int64_t begin, int64_t count) const {
  Rows out;
  const size_t s = segment_of(begin);
  out.add(count, segments[s]);
  out.segments.back().first += begin - cu_seqlens[s];
  return out;
}

Rows pack(std::span<const int64_t> lengths) {
  Rows rows;
  for (const int64_t length : lengths) {
    require(length > 0, Code::kInvalid, "nn: sequence ", rows.num_segments(), " has ", length,
            " tokens, it must have at least 1");
    rows.add(length, {});
  }
  rows.position_ids = at::empty({rows.num_tokens()}, at::kLong);
  int64_t* position = rows.position_ids.mutable_data_ptr<int64_t>();
  for (const int64_t length : lengths) {
    std::iota(position, position + length, 0);
    position += length;
  }
  return rows;
}

}  // namespace twinkle::nn
