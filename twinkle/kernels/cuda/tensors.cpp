#include <ATen/ATen.h>

#include <vector>

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
  return {x.const_data_ptr(),
          weight.defined() ? weight.const_data_ptr() : nullptr,
          x.numel() / width,
          width,
          eps,
          weight.defined() && weight.scalar_type() == at::kBFloat16};
}

// As the kernel reads it.
at::Tensor norm_weight(const at::Tensor& x, const at::Tensor& weight) {
  if (weight.scalar_type() == at::kBFloat16 && rms_norm_reads_weight(type_of(x), x.size(-1))) {
    return weight.contiguous();
  }
  return weight.to(wide_of(x)).contiguous();
}

// The rows' ids and temperatures on the device, for as long as this is.
struct LogitTables {
  at::Tensor ids, temperature;

  LogitTables(const at::Tensor& logits, std::span<const int32_t> of_ids,
              std::span<const float> of_t)
      : ids(table_on<int32_t>(logits.device(), of_ids)) {
    require(logits.is_contiguous() && logits.dim() == 2 && std::ssize(of_ids) == logits.size(0) &&
                (of_t.empty() || of_t.size() == of_ids.size()),
            Code::kInvalid, "kernels: softmax's logits are ", logits.sizes(), " with ",
            of_ids.size(), " ids and ", of_t.size(),
            " temperatures, they must be contiguous [n, vocab] with n of each, or no temperature");
    if (!of_t.empty()) temperature = table_on<float>(logits.device(), of_t);
  }
  LogitRows of(const at::Tensor& logits) const {
    return {
        logits.data_ptr(), static_cast<const int32_t*>(ids.const_data_ptr()),
        temperature.defined() ? static_cast<const float*>(temperature.const_data_ptr()) : nullptr,
        logits.size(0), logits.size(1)};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  const StreamGuard place(x);
  const at::Tensor in = x.contiguous(), w = norm_weight(x, weight);
  const at::Tensor out = at::empty_like(in);
  cuda::rms_norm(type_of(x), rows_of(in, w, eps), out.mutable_data_ptr(), place.stream);
  return out;
}

at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps) {
  const StreamGuard place(x);
  const at::Tensor in = x.contiguous(), g = grad.contiguous();
  const at::Tensor w = norm_weight(x, weight), out = at::empty_like(in);
  cuda::rms_norm_backward(type_of(x), rows_of(in, w, eps), g.const_data_ptr(),
                          out.mutable_data_ptr(), place.stream);
  return out;
}

void rms_norm_weight_grad(const at::Tensor& grad, const at::Tensor& x, double eps,
                          std::span<const int64_t> cu_seqlens, at::Tensor& sum) {
  const StreamGuard place(x);
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
          const at::Tensor& position_ids, Turn turn, Pairs pairs) {
  const StreamGuard place(x);
  const at::Tensor ids = position_ids.to(at::kLong).contiguous();
  keep(cos);
  keep(sin);
  cuda::rope(type_of(x),
             {.x = x.const_data_ptr(),
              .cos = cos.const_data_ptr<float>(),
              .sin = sin.const_data_ptr<float>(),
              .position_ids = ids.const_data_ptr<int64_t>(),
              .tokens = x.size(0),
              .heads = x.size(1),
              .dim = x.size(2),
              .half = cos.size(1),
              .backward = turn == Turn::kBackward,
              .neighbours = pairs == Pairs::kNeighbours},
             out.mutable_data_ptr(), place.stream);
}

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up) {
  const StreamGuard place(gate);
  const at::Tensor g = gate.contiguous(), u = up.contiguous(), out = at::empty_like(g);
  cuda::swiglu(type_of(g), g.const_data_ptr(), u.const_data_ptr(), {g.numel(), g.size(-1)},
               out.mutable_data_ptr(), place.stream);
  return out;
}

SwigluGrads swiglu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                            SwigluNeeds needs) {
  const StreamGuard place(gate);
  const at::Tensor d = grad.contiguous(), g = gate.contiguous(), u = up.contiguous();
  SwigluGrads out;
  if (needs != SwigluNeeds::kUp) out.gate = at::empty_like(g);
  if (needs != SwigluNeeds::kGate) out.up = at::empty_like(g);
  const auto data = [](const at::Tensor& t) {
    return t.defined() ? t.mutable_data_ptr() : nullptr;
  };
  cuda::swiglu_backward(type_of(g), d.const_data_ptr(), g.const_data_ptr(), u.const_data_ptr(),
                        {g.numel(), g.size(-1)}, {data(out.gate), data(out.up)}, place.stream);
  return out;
}

void softmax_stats(const at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, std::span<RowStats> stats) {
  const StreamGuard place(logits);
  const LogitTables rows(logits, ids, temperature);
  const at::Tensor out = at::empty({logits.size(0), 4}, logits.options().dtype(wide_of(logits)));
  cuda::softmax_stats(type_of(logits), rows.of(logits), out.mutable_data_ptr(), place.stream);
  const at::Tensor host = out.to(at::kCPU, at::kDouble);
  const double* row = host.const_data_ptr<double>();
  for (size_t r = 0; r < ids.size(); ++r, row += 4) {
    stats[r] = {.logprob = row[0], .entropy = row[1], .top = row[2], .sum = row[3]};
  }
}

void softmax_grad_(at::Tensor& logits, std::span<const int32_t> ids,
                   std::span<const float> temperature, std::span<const RowStats> stats,
                   std::span<const float> grad, std::span<const float> entropy_grad) {
  const StreamGuard place(logits);
  const LogitTables rows(logits, ids, temperature);
  std::vector<double> known;
  for (const RowStats& row : stats.first(ids.size())) {
    known.insert(known.end(), {row.logprob, row.entropy, row.top, row.sum});
  }
  const at::Tensor of_rows =
      table_on<double>(place.device, known).view(at::kDouble).to(wide_of(logits));
  const at::Tensor slopes = table_on<float>(place.device, grad.first(ids.size()));
  const at::Tensor of_entropy = entropy_grad.empty()
                                    ? at::Tensor()
                                    : table_on<float>(place.device, entropy_grad.first(ids.size()));
  const auto data = [](const at::Tensor& t) {
    return t.defined() ? static_cast<const float*>(t.const_data_ptr()) : nullptr;
  };
  cuda::softmax_grad(type_of(logits), rows.of(logits), of_rows.const_data_ptr(),
                     {data(slopes), data(of_entropy)}, place.stream);
}

}  // namespace twinkle::kernels::cuda
