#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/rms_norm.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

template <class T>
at::Tensor wide(const at::Tensor& x) {
  return x.to(c10::CppTypeToScalarType<Wide<T>>::value).contiguous();
}

void check(const at::Tensor& x, const at::Tensor& weight) {
  require(x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1), Code::kInvalid,
          "kernels: rms_norm's weight is ", weight.sizes(), ", it must be the last dim of x, ",
          x.sizes());
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, const Simd& simd) {
  check(x, weight);
  if (cuda::takes(x)) return cuda::rms_norm(x, weight, eps);
  const at::Tensor in = x.contiguous(), out = at::empty_like(in);
  with_type(x, "rms_norm's x", [&]<class T>(T) {
    using A = Wide<T>;
    const int64_t width = x.size(-1);
    const T* from = in.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    const auto rows = [&](const auto loop, const auto* w) {
      parallel_for(0, in.numel() / width, row_grain(width), [&](int64_t begin, int64_t end) {
        loop(from + begin * width, w, end - begin, width, static_cast<A>(eps), to + begin * width);
      });
    };
    if (weight.scalar_type() == x.scalar_type() && weight.is_contiguous()) {
      return rows(simd.loops<T>().rms_norm, weight.const_data_ptr<T>());
    }
    const at::Tensor w = wide<T>(weight);
    rows(simd.loops<T>().rms_norm_wide, w.template const_data_ptr<A>());
  });
  return out;
}

AddedNorm add_rms_norm(const at::Tensor& x, const at::Tensor& delta, const at::Tensor& weight,
                       double eps, const Simd& simd) {
  check(x, weight);
  require_like(delta, "add_rms_norm's delta", x, "x");
  if (cuda::takes(x) || weight.scalar_type() != x.scalar_type()) {
    const at::Tensor sum = x + delta;
    return {sum, rms_norm(sum, weight, eps, simd)};
  }
  const at::Tensor a = x.contiguous(), b = delta.contiguous(), w = weight.contiguous();
  const AddedNorm out{at::empty_like(a), at::empty_like(a)};
  with_type(x, "add_rms_norm's x", [&]<class T>(T) {
    const int64_t width = x.size(-1);
    const T* from = a.const_data_ptr<T>();
    const T* with = b.const_data_ptr<T>();
    T* sum = out.sum.mutable_data_ptr<T>();
    T* normed = out.normed.mutable_data_ptr<T>();
    parallel_for(0, a.numel() / width, row_grain(width), [&](int64_t begin, int64_t end) {
      const int64_t at = begin * width;
      simd.loops<T>().add(from + at, with + at, (end - begin) * width, sum + at);
      simd.loops<T>().rms_norm(sum + at, w.const_data_ptr<T>(), end - begin, width,
                               static_cast<Wide<T>>(eps), normed + at);
    });
  });
  return out;
}

at::Tensor rms_norm_backward(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& weight,
                             double eps, const Simd& simd) {
  check(x, weight);
  require_like(grad, "rms_norm's gradient", x, "x");
  if (cuda::takes(x)) return cuda::rms_norm_backward(grad, x, weight, eps);
  const at::Tensor in = x.contiguous(), slope = grad.contiguous(), out = at::empty_like(in);
  with_type(x, "rms_norm's x", [&]<class T>(T) {
    const at::Tensor w = wide<T>(weight);
    const int64_t width = x.size(-1);
    const T* from = in.const_data_ptr<T>();
    const T* g = slope.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    parallel_for(0, in.numel() / width, row_grain(width), [&](int64_t begin, int64_t end) {
      simd.loops<T>().rms_norm_backward(g + begin * width, from + begin * width,
                                        w.const_data_ptr<Wide<T>>(), end - begin, width,
                                        static_cast<Wide<T>>(eps), to + begin * width);
    });
  });
  return out;
}

void rms_norm_weight_grad(const at::Tensor& grad, const at::Tensor& x, double eps,
                          std::span<const int64_t> cu_seqlens, at::Tensor& sum, const Simd& simd) {
  check(x, sum);
  require_like(grad, "rms_norm's gradient", x, "x");
  require(!cu_seqlens.empty() && cu_seqlens.back() == x.size(0), Code::kInvalid,
          "kernels: rms_norm's cu_seqlens must end at ", x.size(0), ", the number of tokens");
  const auto wanted = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  require(sum.scalar_type() == wanted && sum.is_contiguous(), Code::kInvalid,
          "kernels: rms_norm's sum is ", sum.scalar_type(), ", it must be contiguous and ", wanted);
  if (x.numel() == 0) return;
  if (cuda::takes(x)) return cuda::rms_norm_weight_grad(grad, x, eps, cu_seqlens, sum);
  const at::Tensor in = x.contiguous(), slope = grad.contiguous();
  with_type(x, "rms_norm's x", [&]<class T>(T) {
    using A = Wide<T>;
    const int64_t width = x.size(-1), rows = in.numel() / width, per_token = rows / x.size(0);
    const T* from = in.const_data_ptr<T>();
    const T* g = slope.const_data_ptr<T>();
    A* to = sum.mutable_data_ptr<A>();
    const at::Tensor scales = at::empty({rows}, sum.options());
    A* scale = scales.mutable_data_ptr<A>();
    parallel_for(0, rows, row_grain(width), [&](int64_t begin, int64_t end) {
      simd.loops<T>().rms_scales(from + begin * width, end - begin, width, static_cast<A>(eps),
                                 scale + begin);
    });
    // Threads share out the columns: the rows of a sequence are one sum.
    constexpr int64_t kColumns = 64;
    const int64_t blocks = (width + kColumns - 1) / kColumns;
    parallel_for(0, blocks, row_grain(kColumns * rows), [&](int64_t begin, int64_t end) {
      for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
        const int64_t first = cu_seqlens[s] * per_token, last = cu_seqlens[s + 1] * per_token;
        simd.loops<T>().rms_norm_weight(g + first * width, from + first * width, scale + first,
                                        last - first, width, begin * kColumns,
                                        std::min(end * kColumns, width), to);
      }
    });
  });
}

}  // namespace twinkle::kernels
