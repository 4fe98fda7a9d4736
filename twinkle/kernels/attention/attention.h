// Causal attention over packed sequences and over a paged cache, by the same inner loops: a query's
// row has the same bits in both, whatever else is in the batch and however many threads run.
// Functions over tensors, no autograd. bf16 and float32 are computed in float32, float64 in
// float64. T, N tokens; H query heads, K key heads (H a multiple of K: head h reads key head h / (H
// / K)); d head size; S sequences; P pages. Error kInvalid of each: other shapes or types, a
// negative window or softcap, one on a device, cu_seqlens that do not rise from 0 to T, a page
// outside the cache.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "twinkle/kernels/simd/simd.h"

namespace twinkle::kernels {

struct AttentionOptions {
  double scale = 1;    // multiplies q k^T, usually 1 / sqrt(d)
  int64_t window = 0;  // token i sees i - window < j <= i; 0: every j <= i
  // On a device: the backward adds in a fixed order, at about half the speed.
  bool deterministic = true;
  // [H] of any float type, or undefined: of each head one more score in the softmax' sum, of a key
  // that has no value (Xiao et al. 2024, section 3.3; a learned one). On the CPU.
  at::Tensor sinks = {};
  double softcap = 0;  // scaled scores s become softcap tanh(s / softcap), on the CPU; 0: they stay
};

struct AttentionResult {
  at::Tensor out;  // [T, H, d], of q's type
  // [T, H] float32 (float64): log of the sum of exp of the scaled scores, capped where they are,
  // and of a head's sink
  at::Tensor lse;
};

// q [T, H, d], k and v [T, K, d]; cu_seqlens [S + 1] rises from 0 to T: sequence s is rows [s] ..<
// [s + 1].
AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          std::span<const int64_t> cu_seqlens, const AttentionOptions& options,
                          const Simd& simd = best_simd());

// Inputs of a backward pass: the gradient of out, attention's inputs and what it returned for them.
struct AttentionSaved {
  at::Tensor grad, q, k, v;
  AttentionResult forward;
};
struct AttentionNeeds {
  bool q = true, k = true, v = true;
};
struct AttentionGrads {
  at::Tensor q, k, v;  // each like its tensor; undefined when not needed
};

// With sinks they are in the results that the forward pass gave: nothing else of them is read.
AttentionGrads attention_backward(const AttentionSaved& saved, std::span<const int64_t> cu_seqlens,
                                  const AttentionOptions& options, const AttentionNeeds& needs = {},
                                  const Simd& simd = best_simd());

// Keys and values by page of kKeyTile (64) tokens. Keys are stored transposed, as the inner loop
// reads them; or not at all, where a key is its own value (latent attention): on the CPU.
struct PagedKeys {
  at::Tensor k;  // [P, K, d, 64] or undefined: the values are the keys
  at::Tensor v;  // [P, K, 64, d]
};

PagedKeys make_pages(int64_t num_pages, int64_t num_key_heads, int64_t head_dim,
                     at::ScalarType type);

// The token and sequence of each row. If the pages and all three tensors are on a device, the rows
// are not checked: the caller guarantees that they are inside.
struct PagedRows {
  at::Tensor block_tables;  // [S, most pages] int32: page of each 64 tokens; behind a sequence's
                            // end anything
  at::Tensor sequences;     // [N] int32 or int64: row of block_tables
  at::Tensor positions;     // [N] int32 or int64: from 0 in the sequence
};

// Writes k and v [N, K, d] to their places, v alone where pages have no keys. No two rows may name
// one place.
void write_pages(PagedKeys& pages, const at::Tensor& k, const at::Tensor& v, const PagedRows& rows);

// q [N, H, d] to [N, H, d]. Every key up to a row's own position (inside its window) must have been
// written; pages wholly before the windows of a sequence's rows are not read.
at::Tensor attention_paged(const at::Tensor& q, const PagedKeys& pages, const PagedRows& rows,
                           const AttentionOptions& options, const Simd& simd = best_simd());

}  // namespace twinkle::kernels
