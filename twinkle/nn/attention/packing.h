// How the tokens of one call are laid out: sequences one after the other in one row, never padded.
// Knows nothing of tenants, slots or devices. T tokens, S sequences.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

namespace twinkle::nn {

struct Packing {
  at::Tensor position_ids;  // [T] int32 or int64: what rope sees, usually 0, 1, ... per sequence
  std::vector<int64_t> cu_seqlens;  // [S + 1] tokens: sequence s is rows cu_seqlens[s] ..< [s + 1]

  int64_t num_sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t num_tokens() const { return cu_seqlens.back(); }
};

// Sequences of these lengths (tokens), positions counted from 0 in each. Error kInvalid: a length
// below 1.
Packing pack(std::span<const int64_t> lengths);

}  // namespace twinkle::nn
