// kv_b_proj of latent attention, absorbed into the queries and the output (DeepSeek-V2, section
// 2.1.2): its rows are of each head h first W_k, then W_v, and instead of keys W_k c and values W_v
// c of every token's latent c,
//   q (W_k c) = (W_k^T q) c   and   sum_j p_j (W_v c_j) = W_v (sum_j p_j c_j).
// So attention has one key head, the latents, whose values they are, too, in training, prompts and
// decoding alike. A row's bits depend on that row alone. On the CPU. T tokens, H heads, n and v the
// sizes of a head's query and value, r the latent's.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include "twinkle/nn/linear.h"

namespace twinkle::nn {

struct AbsorbedPass;

// Both products of one pass, which share what adapters on kv_b_proj need: their B A, added to the
// weight of their sequences' rows, without dropout. Such a gradient is added once both products
// have gone backward. Differentiable.
class AbsorbedKv {
 public:
  // kv_b [H (n + v), r], without a bias. `rows` are copied.
  AbsorbedKv(const Linear& kv_b, int64_t num_heads, int64_t nope_dim, const Rows& rows);
  ~AbsorbedKv();
  AbsorbedKv(const AbsorbedKv&) = delete;
  AbsorbedKv& operator=(const AbsorbedKv&) = delete;

  at::Tensor queries(const at::Tensor& q_THn) const;     // [T, H, r]: W_k^T q
  at::Tensor values(const at::Tensor& mixed_THr) const;  // [T, H, v]: W_v of what was mixed

  // Bytes that a pass keeps for backward, without the products' inputs, which it keeps where kv_b
  // needs_input().
  static int64_t saved_bytes(const Linear& kv_b, const Rows& rows);
  // Bytes that backward keeps from one product to the other: of each sequence with an adapter on
  // kv_b the gradient of what that adds to the weight.
  static int64_t backward_bytes(const Linear& kv_b, const Rows& rows);

 private:
  c10::intrusive_ptr<AbsorbedPass> pass_;
};

}  // namespace twinkle::nn
