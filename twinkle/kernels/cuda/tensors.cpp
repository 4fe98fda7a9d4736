#include <ATen/ATen.h>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {

Type type_of(const at::Tensor& x) {
  switch (x.scalar_type()) {
    case at::kBFloat16:
      return Type::kBf16;
    case at::kFloat:
      return Type::kFloat;
    case at::kDouble:
      return Type::kDouble;
    default:
      fail(Code::kInvalid, "kernels: a tensor is ", x.scalar_type(),
           ", it must be bfloat16, float32 or float64");
  }
}

at::ScalarType wide_of(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

namespace {

RmsNormRows rows_of(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const int64_t width = x.size(-1);
  return {x.const_data_ptr(), weight.defined() ? weight.const_data_ptr() : nullptr,
          x.numel() / width, width, eps};
}

LogitRows rows_of(const at::Tensor& logits, const at::Tensor& ids, const at::Tensor& temperature) {
  require(logits.is_contiguous() && ids.size(0) == logits.size(0), Code::kInvalid,
          "kernels: softmax's logits are ", logits.sizes(), " and its ids ", ids.sizes(),
          ", they must be contiguous [n, vocab] and [n]");
  return {logits.data_ptr(), ids.const_data_ptr<int32_t>(),
          temperature.defined() ? temperature.const_data_ptr<float>() : nullptr, logits.size(0),
          logits.size(1)};
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const Place place(x);
  const at::Tensor in = x.contiguous(), w = weight.to(wide_of(x)).contiguous();
  const at::Tensor out = at::empty_like(in);
  cuda::rms_norm(type_of(x), rows_of(in, w, eps), out.mutable_data_ptr(), place.stream);
  return out;
}

at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps) {
  const Place place(x);
  const at::Tensor in = x.contiguous(), g = grad.contiguous();
  const at::Tensor w = weight.to(wide_of(x)).contiguous(), out = at::empty_like(in);
  cuda::rms_norm_backward(type_of(x), rows_of(in, w, eps), g.const_data_ptr(),
                          out.mutable_data_ptr(), place.stream);
  return out;
}

void rms_norm_weight_grad(const at::Tensor& grad, const at::Tensor& x, double eps,
                          std::span<const int64_t> cu_seqlens, at::Tensor& sum) {
  const Place place(x);
  const at::Tensor in = x.contiguous(), g = grad.contiguous();
  const int64_t per_token = in.numel() / x.size(-1) / x.size(0);
  std::vector<int64_t> starts(cu_seqlens.begin(), cu_seqlens.end());
  for (int64_t& start : starts) start *= per_token;
  const at::Tensor rows_of_sequence = table_on<int64_t>(place.device, starts);
  const RmsNormRows rows = rows_of(in, {}, eps);
  const at::Tensor scales = at::empty({rows.rows}, sum.options());
  cuda::rms_norm_weight_grad(
      type_of(x), rows,
      {.grad = g.const_data_ptr(),
       .scales = scales.mutable_data_ptr(),
       .rows_of = static_cast<const int64_t*>(rows_of_sequence.const_data_ptr()),
       .num_sequences = std::ssize(starts) - 1,
       .sum = sum.mutable_data_ptr()},
      place.stream);
}

void rope(const at::Tensor& x, const at::Tensor& out, const at::Tensor& cos, const at::Tensor& sin,
          const at::Tensor& position_ids, Turn turn) {
  const Place place(x);
  const at::Tensor ids = position_ids.to(at::kLong).contiguous();
  cuda::rope(type_of(x),
             {.x = x.const_data_ptr(),
              .cos = cos.const_data_ptr<float>(),
              .sin = sin.const_data_ptr<float>(),
              .position_ids = ids.const_data_ptr<int64_t>(),
              .tokens = x.size(0),
              .heads = x.size(1),
              .dim = x.size(2),
              .half = cos.size(1),
              .backward = turn == Turn::kBackward},
             out.mutable_data_ptr(), place.stream);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const Place place(gate);
  const at::Tensor g = gate.contiguous(), u = up.contiguous(), out = at::empty_like(g);
  cuda::swiglu(type_of(g), g.const_data_ptr(), u.const_data_ptr(), g.numel(),
               out.mutable_data_ptr(), place.stream);
  return out;
}

SwigluGrads swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                            SwigluNeeds needs) {
  const Place place(gate);
  const at::Tensor d = grad.contiguous(), g = gate.contiguous(), u = up.contiguous();
  SwigluGrads out;
  if (needs != SwigluNeeds::kUp) out.gate = at::empty_like(g);
  if (needs != SwigluNeeds::kGate) out.up = at::empty_like(g);
  const auto data = [](const at::Tensor& t) {
    return t.defined() ? t.mutable_data_ptr() : nullptr;
  };
  cuda::swiglu_backward(type_of(g), d.const_data_ptr(), g.const_data_ptr(), u.const_data_ptr(),
                        g.numel(), {data(out.gate), data(out.up)}, place.stream);
  return out;
}

at::Tensor softmax_stats(const at::Tensor& logits, const at::Tensor& ids,
                         const at::Tensor& temperature) {
  const Place place(logits);
  const at::Tensor out = at::empty({logits.size(0), 4}, logits.options().dtype(wide_of(logits)));
  cuda::softmax_stats(type_of(logits), rows_of(logits, ids, temperature), out.mutable_data_ptr(),
                      place.stream);
  return out;
}

void softmax_grad_(at::Tensor& logits, const at::Tensor& ids, const at::Tensor& temperature,
                   const at::Tensor& stats, const at::Tensor& grad) {
  const Place place(logits);
  cuda::softmax_grad(type_of(logits), rows_of(logits, ids, temperature), stats.const_data_ptr(),
                     grad.const_data_ptr<float>(), place.stream);
}

}  // namespace twinkle::kernels::cuda
