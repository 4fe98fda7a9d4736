#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "twinkle/kernels/delta/conv.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

template <class T>
constexpr auto kWide = c10::CppTypeToScalarType<Wide<T>>::value;

constexpr int64_t kChannels = 256;  // in one piece of work

void check_conv(const at::Tensor& x, const at::Tensor& weight) {
  require(x.is_cpu(), Code::kInvalid, "kernels: conv_silu's x is on ", x.device(),
          "; it runs on the CPU only");
  require(x.dim() == 2 && weight.dim() == 3 && weight.size(0) == x.size(1) && weight.size(1) == 1 &&
              weight.size(2) == kConvTaps,
          Code::kInvalid, "kernels: conv_silu's x is ", x.sizes(), " and its weight ",
          weight.sizes(), ", they must be [tokens, channels] and [channels, 1, ", kConvTaps, "]");
}

// [kConvTaps, C]
template <class T>
at::Tensor taps(const at::Tensor& weight) {
  return weight.select(1, 0).t().to(kWide<T>).contiguous();
}

void check_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight) {
  require(x.is_cpu(), Code::kInvalid, "kernels: gated_rms_norm's x is on ", x.device(),
          "; it runs on the CPU only");
  require_like(gate, "gated_rms_norm's gate", x, "x");
  require(x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1), Code::kInvalid,
          "kernels: gated_rms_norm's weight is ", weight.sizes(),
          ", it must be the last dim of x, ", x.sizes());
}

void check_learn(const at::Tensor& x, std::span<const int64_t> cu_seqlens,
                 const std::vector<bool>& learn, const at::Tensor* sum) {
  require(std::ssize(cu_seqlens) == std::ssize(learn) + 1 && cu_seqlens.front() == 0 &&
              cu_seqlens.back() == x.size(0) && std::ranges::is_sorted(cu_seqlens),
          Code::kInvalid, "kernels: cu_seqlens must rise from 0 to ", x.size(0),
          ", the number of tokens, in ", learn.size(), " sequences");
  const auto wanted = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  require(!sum || (sum->scalar_type() == wanted && sum->is_contiguous()), Code::kInvalid,
          "kernels: the sum of a weight's gradient must be contiguous and ", wanted);
}

}  // namespace

at::Tensor conv_silu(const at::Tensor& x, const at::Tensor& weight, std::span<const ConvRun> runs,
                     const Simd& simd) {
  check_conv(x, weight);
  const at::Tensor in = x.contiguous();
  int64_t rows = 0;
  for (const ConvRun& run : runs) {
    require(run.count >= 0 && run.row >= 0 && run.row + run.count <= x.size(0), Code::kInvalid,
            "kernels: conv_silu's run of rows [", run.row, ", ", run.row + run.count,
            ") is not among ", x.size(0), " rows");
    rows += run.count;
  }
  const at::Tensor out = rows == x.size(0) ? at::empty_like(in) : at::zeros_like(in);
  const int64_t channels = x.size(1), parts = (channels + kChannels - 1) / kChannels;
  with_type(x, "conv_silu's x", [&]<class T>(T) {
    const at::Tensor w = taps<T>(weight);
    const T* from = in.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    for_each_task<Wide<T>>({std::ssize(runs) * parts, 0}, [&](int64_t i, Wide<T>*) {
      const ConvRun& run = runs[static_cast<size_t>(i / parts)];
      const int64_t begin = i % parts * kChannels;
      simd.loops<T>().conv_forward({.x = from + run.row * channels,
                                    .stride = channels,
                                    .count = run.count,
                                    .begin = begin,
                                    .end = std::min(begin + kChannels, channels),
                                    .weight = w.const_data_ptr<Wide<T>>(),
                                    .past = static_cast<T*>(run.past),
                                    .from_start = run.first == 0,
                                    .out = to + run.row * channels});
    });
  });
  return out;
}

at::Tensor conv_silu_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                              std::span<const int64_t> cu_seqlens, const std::vector<bool>& learn,
                              at::Tensor* sum, const Simd& simd) {
  check_conv(x, weight);
  check_learn(x, cu_seqlens, learn, sum);
  require_like(grad, "conv_silu's gradient", x, "x");
  const at::Tensor in = x.contiguous(), slope = grad.contiguous(), out = at::empty_like(in);
  const int64_t channels = x.size(1), parts = (channels + kChannels - 1) / kChannels;
  with_type(x, "conv_silu's x", [&]<class T>(T) {
    using A = Wide<T>;
    const at::Tensor w = taps<T>(weight);
    const T* from = in.const_data_ptr<T>();
    const T* g = slope.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    A* into = sum ? sum->mutable_data_ptr<A>() : nullptr;
    // The sequences of a piece of the channels one after the other: their sums are added in order.
    for_each_task<A>({parts, 0}, [&](int64_t i, A*) {
      for (size_t s = 0; s < learn.size(); ++s) {
        const int64_t at = cu_seqlens[s] * channels;
        simd.loops<T>().conv_backward({.x = from + at,
                                       .stride = channels,
                                       .count = cu_seqlens[s + 1] - cu_seqlens[s],
                                       .begin = i * kChannels,
                                       .end = std::min((i + 1) * kChannels, channels),
                                       .weight = w.const_data_ptr<A>(),
                                       .grad = g + at,
                                       .dx = to + at,
                                       .dweight = learn[s] ? into : nullptr});
      }
    });
  });
  return out;
}

namespace {

template <class T>
GatedNormRows<T> norm_rows(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                           double eps, int64_t begin, int64_t end) {
  const int64_t width = x.size(-1);
  return {.x = x.const_data_ptr<T>() + begin * width,
          .gate = gate.const_data_ptr<T>() + begin * width,
          .weight = weight.const_data_ptr<Wide<T>>(),
          .rows = end - begin,
          .width = width,
          .eps = static_cast<Wide<T>>(eps)};
}

}  // namespace

at::Tensor gated_rms_norm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                          double eps, const Simd& simd) {
  check_norm(x, gate, weight);
  const at::Tensor in = x.contiguous(), gates = gate.contiguous(), out = at::empty_like(in);
  with_type(x, "gated_rms_norm's x", [&]<class T>(T) {
    const at::Tensor w = weight.to(kWide<T>).contiguous();
    const int64_t width = x.size(-1);
    T* to = out.mutable_data_ptr<T>();
    parallel_for(0, in.numel() / width, row_grain(4 * width), [&](int64_t begin, int64_t end) {
      auto rows = norm_rows<T>(in, gates, w, eps, begin, end);
      rows.out = to + begin * width;
      simd.loops<T>().gated_norm(rows);
    });
  });
  return out;
}

GatedNormGrads gated_rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                       const at::Tensor& gate, const at::Tensor& weight, double eps,
                                       std::span<const int64_t> cu_seqlens,
                                       const std::vector<bool>& learn, at::Tensor* sum,
                                       const Simd& simd) {
  check_norm(x, gate, weight);
  check_learn(x, cu_seqlens, learn, sum);
  require_like(grad, "gated_rms_norm's gradient", x, "x");
  const at::Tensor in = x.contiguous(), gates = gate.contiguous(), slope = grad.contiguous();
  const GatedNormGrads grads{at::empty_like(in), at::empty_like(in)};
  if (in.numel() == 0) return grads;
  with_type(x, "gated_rms_norm's x", [&]<class T>(T) {
    using A = Wide<T>;
    const at::Tensor w = weight.to(kWide<T>).contiguous();
    const int64_t width = x.size(-1), rows = in.numel() / width, per_token = rows / x.size(0);
    const T* g = slope.const_data_ptr<T>();
    T *dx = grads.x.mutable_data_ptr<T>(), *dgate = grads.gate.mutable_data_ptr<T>();
    const at::Tensor scales = at::empty({rows}, w.options());
    A* scale = scales.mutable_data_ptr<A>();
    parallel_for(0, rows, row_grain(8 * width), [&](int64_t begin, int64_t end) {
      auto part = norm_rows<T>(in, gates, w, eps, begin, end);
      part.grad = g + begin * width;
      part.dx = dx + begin * width, part.dgate = dgate + begin * width;
      simd.loops<T>().gated_norm_backward(part);
      simd.loops<T>().rms_scales(part.x, part.rows, width, part.eps, scale + begin);
    });
    if (!sum) return;
    A* into = sum->mutable_data_ptr<A>();
    constexpr int64_t kColumns = 64;
    const int64_t blocks = (width + kColumns - 1) / kColumns;
    parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
      for (size_t s = 0; s < learn.size(); ++s) {
        if (!learn[s]) continue;
        const int64_t first = cu_seqlens[s] * per_token, last = cu_seqlens[s + 1] * per_token;
        auto part = norm_rows<T>(in, gates, w, eps, first, last);
        part.grad = g + first * width;
        simd.loops<T>().gated_norm_weight(part, scale + first, begin * kColumns,
                                          std::min(end * kColumns, width), into);
      }
    });
  });
  return grads;
}

}  // namespace twinkle::kernels
