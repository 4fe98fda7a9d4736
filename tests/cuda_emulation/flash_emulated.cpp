// ATen's flash attention and cuDNN's on the emulation's device: what attention_library_cuda.cpp
// asks of them, by the CPU's kernel over copies.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <vector>

#include "tests/cuda_emulation/device.h"
#include "twinkle/base/error.h"
#include "twinkle/kernels/attention/attention.h"

namespace twinkle::kernels::emulation {
namespace {

using Maybe = std::optional<at::Tensor>;
using Length = std::optional<int64_t>;

std::vector<int64_t> lengths_on_host(const Maybe& cu_seqlens) {
  const at::Tensor ends = cu_seqlens->to(at::kCPU, at::kLong);
  return {ends.const_data_ptr<int64_t>(), ends.const_data_ptr<int64_t>() + ends.numel()};
}

AttentionOptions options_of(std::optional<double> scale, Length left) {
  return {.scale = scale.value(), .window = left ? *left + 1 : 0};
}

void check(const at::Tensor& q, double dropout, bool causal) {
  require(q.scalar_type() == at::kBFloat16 && q.size(2) % 8 == 0 && q.size(2) <= 256 &&
              dropout == 0 && causal,
          Code::kInternal, "emulation: flash attention of ", q.scalar_type(), " ", q.sizes());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> forward(
    const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Maybe& cu_q, const Maybe&,
    int64_t, int64_t, double dropout, bool causal, bool, std::optional<double> scale, Length left,
    Length, const Maybe&, const Maybe&) {
  check(q, dropout, causal);
  const auto results = computed([=] {
    const AttentionResult out =
        attention(q.cpu(), k.cpu(), v.cpu(), lengths_on_host(cu_q), options_of(scale, left));
    return std::vector{out.out.to(q.device()), out.lse.t().contiguous().to(q.device())};
  });
  return {results[0], results[1], {}, {}, {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor& cu_q, const at::Tensor&,
    int64_t, int64_t, double dropout, bool causal, const at::Tensor&, const at::Tensor&,
    std::optional<double> scale, Length left, Length) {
  check(q, dropout, causal);
  flash_was_deterministic() = at::globalContext().deterministicAlgorithms();
  const auto results = computed([=] {
    const AttentionSaved saved{
        grad.cpu(), q.cpu(), k.cpu(), v.cpu(), {out.cpu(), lse.cpu().t().contiguous()}};
    const AttentionGrads grads =
        attention_backward(saved, lengths_on_host(cu_q), options_of(scale, left));
    return std::vector{grads.q.to(q.device()), grads.k.to(q.device()), grads.v.to(q.device())};
  });
  return {results[0], results[1], results[2]};
}

// [1, heads, S, dim] as rows, and back.
at::Tensor rows_of(const at::Tensor& x) { return x.cpu().transpose(1, 2).squeeze(0).contiguous(); }
at::Tensor from_rows(const at::Tensor& rows, const at::Device& device) {
  return rows.to(device).unsqueeze(0).transpose(1, 2);
}

using Nine = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                        at::Tensor, at::Tensor, at::Tensor>;

Nine cudnn_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const Maybe&,
                   bool, double dropout, bool causal, bool, std::optional<double> scale) {
  check(q.transpose(1, 2).squeeze(0), dropout, causal);
  const std::vector<int64_t> ends{0, q.size(2)};
  const auto results = computed([=] {
    const AttentionResult out =
        attention(rows_of(q), rows_of(k), rows_of(v), ends, options_of(scale, {}));
    const at::Tensor lse = out.lse.t().contiguous().view({1, q.size(1), q.size(2), 1});
    return std::vector{from_rows(out.out, q.device()), lse.to(q.device())};
  });
  return {results[0], results[1], {}, {}, q.size(2), k.size(2), {}, {}, {}};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> cudnn_backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out, const at::Tensor& lse, const at::Tensor&, const at::Tensor&,
    const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt,
    double dropout, bool causal, std::optional<double> scale) {
  check(q.transpose(1, 2).squeeze(0), dropout, causal);
  const std::vector<int64_t> ends{0, q.size(2)};
  const auto results = computed([=] {
    const at::Tensor of_rows = lse.cpu().view({q.size(1), q.size(2)}).t().contiguous();
    const AttentionSaved saved{
        rows_of(grad), rows_of(q), rows_of(k), rows_of(v), {rows_of(out), of_rows}};
    const AttentionGrads grads = attention_backward(saved, ends, options_of(scale, {}));
    return std::vector{from_rows(grads.q, q.device()), from_rows(grads.k, q.device()),
                       from_rows(grads.v, q.device())};
  });
  return {results[0], results[1], results[2]};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_flash_attention_forward", &forward);
  m.impl("_flash_attention_backward", &backward);
  m.impl("_scaled_dot_product_cudnn_attention", &cudnn_forward);
  m.impl("_scaled_dot_product_cudnn_attention_backward", &cudnn_backward);
}

}  // namespace
}  // namespace twinkle::kernels::emulation
