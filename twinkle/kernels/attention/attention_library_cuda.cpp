#include "twinkle/kernels/attention/attention_library.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "twinkle/kernels/cuda/place.h"
#include "twinkle/kernels/deterministic.h"

namespace twinkle::kernels::cuda {
namespace {

using Grads = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
constexpr int64_t kLong = 1024;  // tokens from which on cuDNN is faster
// It makes a plan for each length, which takes long: lengths are multiples of this.
constexpr int64_t kLengthStep = 512;

// Rows of one sequence.
struct Span {
  int64_t begin, count;
  at::Tensor of(const at::Tensor& x) const { return x.narrow(0, begin, count); }
};

std::vector<Span> spans_of(std::span<const int64_t> cu_seqlens) {
  std::vector<Span> spans;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int64_t count = cu_seqlens[s + 1] - cu_seqlens[s];
    if (count > 0) spans.push_back({cu_seqlens[s], count});
  }
  return spans;
}

// A batch as the flash kernels take it, forward and backward.
struct Varlen {
  at::Tensor cu_seqlens;  // int32
  int64_t longest = 0;
  std::optional<int64_t> left, right;  // tokens seen in addition to one's own; none: all

  Varlen(const std::vector<Span>& spans, const AttentionOptions& options,
         const at::Device& device) {
    std::vector<int32_t> ends{0};
    for (const Span& span : spans) {
      ends.push_back(ends.back() + static_cast<int32_t>(span.count));
      longest = std::max(longest, span.count);
    }
    cu_seqlens = table_on<int32_t>(device, ends).view(at::kInt);
    if (options.window > 0) left = options.window - 1, right = 0;
  }
};

AttentionResult flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const Varlen& batch, const AttentionOptions& options) {
  const auto [out, lse, random, unused, mask] = at::_flash_attention_forward(
      q.contiguous(), k.contiguous(), v.contiguous(), batch.cu_seqlens, batch.cu_seqlens,
      batch.longest, batch.longest, /*dropout_p=*/0, /*is_causal=*/true,
      /*return_debug_mask=*/false, options.scale, batch.left, batch.right);
  return {out, lse.t().contiguous()};  // [H, T] there
}

Grads flash_backward(const AttentionSaved& saved, const Varlen& batch,
                     const AttentionOptions& options) {
  const auto& [grad, q, k, v, forward] = saved;
  // The state of the dropout that there is none of.
  const at::Tensor random = at::zeros({2}, q.options().dtype(at::kUInt64));
  return at::_flash_attention_backward(
      grad.contiguous(), q.contiguous(), k.contiguous(), v.contiguous(), forward.out,
      forward.lse.t().contiguous(), batch.cu_seqlens, batch.cu_seqlens, batch.longest,
      batch.longest, /*dropout_p=*/0, /*is_causal=*/true, random, at::zeros({}, random.options()),
      options.scale, batch.left, batch.right);
}

bool is_for_cudnn(const Span& span, const at::Tensor& q, const AttentionOptions& options) {
  return span.count >= kLong && options.window == 0 && (q.size(2) == 64 || q.size(2) == 128);
}

// One sequence [S, heads, dim] as cuDNN takes it, [1, heads, S + some, dim]: what is behind the end
// is zeros, which no row before them sees.
at::Tensor for_cudnn(const at::Tensor& rows) {
  const int64_t count = rows.size(0),
                padded = (count + kLengthStep - 1) / kLengthStep * kLengthStep;
  at::Tensor all = rows.contiguous();
  if (padded > count) {
    all = at::zeros({padded, rows.size(1), rows.size(2)}, rows.options());
    all.narrow(0, 0, count).copy_(rows);
  }
  return all.unsqueeze(0).transpose(1, 2);
}

// [1, heads, S + some, dim] as rows again.
at::Tensor from_cudnn(const at::Tensor& padded, int64_t count) {
  return padded.transpose(1, 2).squeeze(0).narrow(0, 0, count);
}

AttentionResult cudnn(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                      const AttentionOptions& options) {
  const at::Tensor all = for_cudnn(q);
  const auto result = at::_scaled_dot_product_cudnn_attention(
      all, for_cudnn(k), for_cudnn(v), /*attn_bias=*/{}, /*compute_log_sumexp=*/true,
      /*dropout_p=*/0, /*is_causal=*/true, /*return_debug_mask=*/false, options.scale);
  const at::Tensor lse = std::get<1>(result).reshape({q.size(1), all.size(2)}).t();
  return {from_cudnn(std::get<0>(result), q.size(0)), lse.narrow(0, 0, q.size(0)).contiguous()};
}

Grads cudnn_backward(const AttentionSaved& saved, const AttentionOptions& options) {
  const auto& [grad, q, k, v, forward] = saved;
  const int64_t count = q.size(0);
  const at::Tensor all = for_cudnn(q), slope = for_cudnn(grad);
  const int64_t padded = all.size(2);
  const at::Tensor lse = at::zeros({1, q.size(1), padded, 1}, forward.lse.options());
  lse.view({q.size(1), padded}).narrow(1, 0, count).copy_(forward.lse.t());
  // The state of the dropout that there is none of.
  const at::Tensor random = at::zeros({}, q.options().dtype(at::kLong));
  const auto [dq, dk, dv] = at::_scaled_dot_product_cudnn_attention_backward(
      slope, all, for_cudnn(k), for_cudnn(v), for_cudnn(forward.out), lse, random, random,
      /*attn_bias=*/{}, /*cum_seq_q=*/{}, /*cum_seq_k=*/{}, padded, padded, /*dropout_p=*/0,
      /*is_causal=*/true, options.scale);
  return {from_cudnn(dq, count), from_cudnn(dk, count), from_cudnn(dv, count)};
}

}  // namespace

bool is_for_library(const at::Tensor& q) {
  return q.scalar_type() == at::kBFloat16 && q.size(2) % 8 == 0 && q.size(2) <= 256;
}

AttentionResult library_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  std::span<const int64_t> cu_seqlens,
                                  const AttentionOptions& options) {
  const std::vector<Span> spans = spans_of(cu_seqlens);
  const auto is_long = [&](const Span& span) { return is_for_cudnn(span, q, options); };
  AttentionResult all{at::empty_like(q),
                      at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat))};
  if (spans.empty()) return all;
  if (std::ranges::none_of(spans, is_long)) {
    return flash(q, k, v, Varlen(spans, options, q.device()), options);
  }
  for (const Span& span : spans) {
    const AttentionResult one = is_long(span) ? cudnn(span.of(q), span.of(k), span.of(v), options)
                                              : flash(span.of(q), span.of(k), span.of(v),
                                                      Varlen({span}, options, q.device()), options);
    if (spans.size() == 1) return {one.out.contiguous(), one.lse};
    span.of(all.out).copy_(one.out);
    span.of(all.lse).copy_(one.lse);
  }
  return all;
}

Grads library_attention_backward(const AttentionSaved& saved, std::span<const int64_t> cu_seqlens,
                                 const AttentionOptions& options) {
  const auto& [grad, q, k, v, forward] = saved;
  const std::vector<Span> spans = spans_of(cu_seqlens);
  // Torch does not ask cuDNN for an order of its sums, deterministic algorithms or not.
  const auto is_long = [&](const Span& span) {
    return !options.deterministic && is_for_cudnn(span, q, options);
  };
  std::optional<Deterministic> in_order;
  if (options.deterministic) in_order.emplace();
  Grads all{at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  if (spans.empty()) return all;
  if (!options.deterministic && std::ranges::none_of(spans, is_long)) {
    return flash_backward(saved, Varlen(spans, options, q.device()), options);
  }
  // The flash kernels sum dq in as many groups as leave no processor idle, so by the number of
  // sequences: each goes alone.
  for (const Span& span : spans) {
    const AttentionSaved mine{span.of(grad),
                              span.of(q),
                              span.of(k),
                              span.of(v),
                              {span.of(forward.out), span.of(forward.lse)}};
    const auto [dq, dk, dv] =
        is_long(span) ? cudnn_backward(mine, options)
                      : flash_backward(mine, Varlen({span}, options, q.device()), options);
    if (spans.size() == 1) return {dq.contiguous(), dk.contiguous(), dv.contiguous()};
    span.of(std::get<0>(all)).copy_(dq);
    span.of(std::get<1>(all)).copy_(dk);
    span.of(std::get<2>(all)).copy_(dv);
  }
  return all;
}

}  // namespace twinkle::kernels::cuda
