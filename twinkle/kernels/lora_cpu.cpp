// T: type of activations; S: the type computed in. K: width of the activation, R: rank padded to
// the lane.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/kernels/lora.h"
#include "twinkle/kernels/simd/vec.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kRows = 8;  // rows that share one pass over the factors

struct Rows {
  int64_t begin = 0, end = 0;
};

// How many items of `work` multiply-adds each are worth a thread: below some 30 microseconds,
// waking one costs more.
int64_t grain(int64_t work) { return 1 + (int64_t{1} << 18) / std::max<int64_t>(work, 1); }

// SplitMix64's finaliser (Steele et al. 2014): a good 64-bit mix, vectorisable, no state.
TWINKLE_INLINE uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// factor[k] is 0 or 1 / (1 - p) for element k of the sequence's row `token`.
template <class S>
TWINKLE_INLINE void mask_row(S* factor, int64_t k, int64_t token, const LoraDropout& d) {
  const uint64_t row = mix(d.key + 0x9e3779b97f4a7c15ull * static_cast<uint64_t>(token + 1));
  const auto limit = static_cast<uint64_t>(d.p * 4294967296.0);
  const S keep = static_cast<S>(1.0 / (1.0 - d.p));
  for (int64_t i = 0; i < k; ++i) {
    const uint64_t word = mix(row + static_cast<uint64_t>(i)) >> 32;
    factor[i] = word < limit ? S(0) : keep;
  }
}

template <class T, class S>
TWINKLE_INLINE void widen(const T* in, S* out, int64_t k) {
  for (int64_t i = 0; i < k; ++i) out[i] = static_cast<S>(in[i]);
}

// out[n, R] = scale * in[n, K] W[K, R], each row in the order of k.
template <int N, class S>
TWINKLE_INLINE void shrink_block(const S* in, int64_t k, const S* w, int64_t r, S scale, S* out) {
  using V = typename Lanes<S>::Vector;
  constexpr int64_t lanes = Lanes<S>::n;
  for (int64_t j = 0; j < r; j += lanes) {
    V acc[N] = {};
    for (int64_t i = 0; i < k; ++i) {
      V row;
      load(w + i * r + j, row);
      for (int n = 0; n < N; ++n) acc[n] += row * in[n * k + i];
    }
    for (int n = 0; n < N; ++n) store(out + n * r + j, acc[n] * scale);
  }
}

template <class T, class S>
TWINKLE_INLINE void shrink(const T* in, int64_t k, const S* w, int64_t r, S scale, Rows rows,
                           int64_t first, const LoraDropout& drop, S* out) {
  std::vector<S> wide(static_cast<size_t>((kRows + 1) * k));
  S* factor = wide.data() + kRows * k;
  for (int64_t t = rows.begin; t < rows.end; t += kRows) {
    const int64_t n = std::min(kRows, rows.end - t);
    for (int64_t m = 0; m < n; ++m) {
      S* row = wide.data() + m * k;
      widen(in + (t + m) * k, row, k);
      if (drop.key == 0) continue;
      mask_row(factor, k, t + m - first, drop);
      for (int64_t i = 0; i < k; ++i) row[i] *= factor[i];
    }
    S* to = out + (t - first) * r;
    if (n == kRows) {
      shrink_block<kRows, S>(wide.data(), k, w, r, scale, to);
    } else {
      for (int64_t m = 0; m < n; ++m)
        shrink_block<1, S>(wide.data() + m * k, k, w, r, scale, to + m * r);
    }
  }
}

// y[n, K] += factor * scale * h[n, r] W[r, K].
template <int N, class T, class S>
TWINKLE_INLINE void expand_block(const S* h, int64_t stride, const S* w, int64_t r, int64_t k,
                                 S scale, const S* factor, T* y) {
  using V = typename Lanes<T>::Vector;
  constexpr int64_t lanes = Lanes<T>::n;
  int64_t i = 0;
  for (; i + 2 * lanes <= k; i += 2 * lanes) {
    V acc[N][2] = {};
    for (int64_t j = 0; j < r; ++j) {
      V w0, w1;
      load(w + j * k + i, w0);
      load(w + j * k + i + lanes, w1);
      for (int n = 0; n < N; ++n) {
        acc[n][0] += w0 * h[n * stride + j];
        acc[n][1] += w1 * h[n * stride + j];
      }
    }
    for (int n = 0; n < N; ++n) {
      for (int half = 0; half < 2; ++half) {
        V old, f;
        load(y + n * k + i + half * lanes, old);
        V add = acc[n][half] * scale;
        if (factor) {
          load(factor + n * k + i + half * lanes, f);
          add *= f;
        }
        store(y + n * k + i + half * lanes, old + add);
      }
    }
  }
  for (; i < k; ++i) {
    for (int n = 0; n < N; ++n) {
      S acc = 0;
      for (int64_t j = 0; j < r; ++j) acc += w[j * k + i] * h[n * stride + j];
      acc *= scale;
      if (factor) acc *= factor[n * k + i];
      y[n * k + i] = static_cast<T>(static_cast<S>(y[n * k + i]) + acc);
    }
  }
}

template <class T, class S>
TWINKLE_INLINE void expand(const S* h, int64_t stride, const S* w, int64_t r, int64_t k, S scale,
                           Rows rows, int64_t first, const LoraDropout& drop, T* y) {
  constexpr int64_t kBlock = 4;
  std::vector<S> factor(drop.key ? static_cast<size_t>(kBlock * k) : 0);
  for (int64_t t = rows.begin; t < rows.end; t += kBlock) {
    const int64_t n = std::min(kBlock, rows.end - t);
    for (int64_t m = 0; drop.key && m < n; ++m)
      mask_row(factor.data() + m * k, k, t + m - first, drop);
    const S* f = drop.key ? factor.data() : nullptr;
    const S* from = h + (t - first) * stride;
    if (n == kBlock) {
      expand_block<kBlock, T, S>(from, stride, w, r, k, scale, f, y + t * k);
    } else {
      for (int64_t m = 0; m < n; ++m)
        expand_block<1, T, S>(from + m * stride, stride, w, r, k, scale, f ? f + m * k : nullptr,
                              y + (t + m) * k);
    }
  }
}

// grad[j, i] += sum over the sequence's tokens of h[t, j] * in[t, i], for columns [columns.begin,
// columns.end). With `transposed`, grad is [K, r] instead of [r, K].
template <class T, class S>
TWINKLE_INLINE void outer(const S* h, int64_t stride, const T* in, int64_t r, int64_t k, Rows rows,
                          Rows columns, const LoraDropout& drop, bool transposed, S* grad) {
  using V = typename Lanes<T>::Vector;
  constexpr int64_t lanes = Lanes<T>::n;
  constexpr int64_t kRanks = 8;
  const int64_t width = columns.end - columns.begin;
  const int64_t padded = (width + lanes - 1) / lanes * lanes;
  std::vector<S> sum(static_cast<size_t>(r * padded)), wide(static_cast<size_t>(padded));
  std::vector<S> factor(drop.key ? static_cast<size_t>(k) : 0);
  constexpr int64_t kTokens =
      32;  // tokens widened at a time, so that the sums are loaded and stored once for them
  std::vector<S> block(static_cast<size_t>(kTokens * padded));
  for (int64_t t0 = rows.begin; t0 < rows.end; t0 += kTokens) {
    const int64_t n = std::min(kTokens, rows.end - t0);
    for (int64_t m = 0; m < n; ++m) {
      S* row = block.data() + m * padded;
      widen(in + (t0 + m) * k + columns.begin, row, width);
      if (drop.key == 0) continue;
      mask_row(factor.data(), k, t0 + m - rows.begin, drop);
      for (int64_t i = 0; i < width; ++i) row[i] *= factor[static_cast<size_t>(columns.begin + i)];
    }
    const S* hs = h + (t0 - rows.begin) * stride;
    for (int64_t i = 0; i < padded; i += lanes) {
      for (int64_t j = 0; j < r; j += kRanks) {
        const int64_t ranks = std::min(kRanks, r - j);
        V acc[kRanks];
        for (int64_t q = 0; q < ranks; ++q) load(sum.data() + (j + q) * padded + i, acc[q]);
        if (ranks == kRanks) {
          for (int64_t m = 0; m < n; ++m) {
            V x;
            load(block.data() + m * padded + i, x);
            for (int64_t q = 0; q < kRanks; ++q) acc[q] += x * hs[m * stride + j + q];
          }
        } else {
          for (int64_t m = 0; m < n; ++m) {
            V x;
            load(block.data() + m * padded + i, x);
            for (int64_t q = 0; q < ranks; ++q) acc[q] += x * hs[m * stride + j + q];
          }
        }
        for (int64_t q = 0; q < ranks; ++q) store(sum.data() + (j + q) * padded + i, acc[q]);
      }
    }
  }
  for (int64_t j = 0; j < r; ++j) {
    for (int64_t i = 0; i < width; ++i) {
      S& to = transposed ? grad[(columns.begin + i) * r + j] : grad[j * k + columns.begin + i];
      to += sum[static_cast<size_t>(j * padded + i)];
    }
  }
}

// Function templates cannot be cloned by instruction set: each type gets its own plain functions.
#define TWINKLE_LORA(T, S)                                                                         \
  TWINKLE_CLONES void shrink_rows(const T* in, int64_t k, const S* w, int64_t r, S scale,          \
                                  Rows rows, int64_t first, const LoraDropout& drop, S* out) {     \
    shrink<T, S>(in, k, w, r, scale, rows, first, drop, out);                                      \
  }                                                                                                \
  TWINKLE_CLONES void expand_rows(const S* h, int64_t stride, const S* w, int64_t r, int64_t k,    \
                                  S scale, Rows rows, int64_t first, const LoraDropout& drop,      \
                                  T* y) {                                                          \
    expand<T, S>(h, stride, w, r, k, scale, rows, first, drop, y);                                 \
  }                                                                                                \
  TWINKLE_CLONES void outer_columns(const S* h, int64_t stride, const T* in, int64_t r, int64_t k, \
                                    Rows rows, Rows columns, const LoraDropout& drop,              \
                                    bool transposed, S* grad) {                                    \
    outer<T, S>(h, stride, in, r, k, rows, columns, drop, transposed, grad);                       \
  }
TWINKLE_LORA(c10::BFloat16, float)
TWINKLE_LORA(float, float)
TWINKLE_LORA(double, double)
#undef TWINKLE_LORA

template <class F>
void dispatch(at::ScalarType type, F&& run) {
  if (type == at::kBFloat16) return run(c10::BFloat16{}, 0.0f);
  if (type == at::kFloat) return run(0.0f, 0.0f);
  if (type == at::kDouble) return run(0.0, 0.0);
  fail(Code::kInvalid, "kernels: lora takes bfloat16, float32 or float64, not ",
       c10::toString(type));
}

}  // namespace

void LoraFactors::repack() {
  const int64_t r = rank(), padded = (r + kLane - 1) / kLane * kLane;
  const at::Tensor a_rI = a.contiguous(), b_Or = b.contiguous();
  const int64_t inputs = a.size(1), outputs = b.size(0);
  at::Tensor wide_a = at::empty({inputs, padded}, a.options());
  at::Tensor wide_b = at::empty({outputs, padded}, b.options());
  at::Tensor turned = at::empty({r, outputs}, b.options());
  AT_DISPATCH_FLOATING_TYPES(a.scalar_type(), "repack", [&] {
    const scalar_t *from_a = a_rI.const_data_ptr<scalar_t>(),
                   *from_b = b_Or.const_data_ptr<scalar_t>();
    scalar_t* to = wide_a.mutable_data_ptr<scalar_t>();
    for (int64_t i = 0; i < inputs; ++i, to += padded) {
      for (int64_t j = 0; j < padded; ++j) to[j] = j < r ? from_a[j * inputs + i] : scalar_t(0);
    }
    scalar_t* wide = wide_b.mutable_data_ptr<scalar_t>();
    scalar_t* transposed = turned.mutable_data_ptr<scalar_t>();
    for (int64_t o = 0; o < outputs; ++o, wide += padded) {
      for (int64_t j = 0; j < padded; ++j) wide[j] = j < r ? from_b[o * r + j] : scalar_t(0);
      for (int64_t j = 0; j < r; ++j) transposed[j * outputs + o] = from_b[o * r + j];
    }
  });
  a_IR = wide_a;
  b_OR = wide_b;
  b_rO = turned;
}

int64_t LoraFactors::saved_bytes(int64_t tokens) const {
  const int64_t padded = (rank() + kLane - 1) / kLane * kLane;
  return tokens * padded * static_cast<int64_t>(a.element_size());
}

at::Tensor lora_forward(const at::Tensor& x, int64_t begin, int64_t end, const LoraFactors& f,
                        const LoraDropout& dropout, at::Tensor& y) {
  const int64_t inputs = x.size(1), outputs = y.size(1), padded = f.a_IR.size(1), r = f.rank();
  at::Tensor h = at::empty({end - begin, padded}, f.a.options());
  dispatch(x.scalar_type(), [&](auto type, auto scalar) {
    using T = decltype(type);
    using S = decltype(scalar);
    const T* from = x.const_data_ptr<T>();
    T* to = y.mutable_data_ptr<T>();
    S* mid = h.mutable_data_ptr<S>();
    const S* a = f.a_IR.const_data_ptr<S>();
    const S* b = f.b_rO.const_data_ptr<S>();
    at::parallel_for(begin, end, grain((inputs + outputs) * padded), [&](int64_t lo, int64_t hi) {
      const Rows rows{lo, hi};
      shrink_rows(from, inputs, a, padded, S(1), rows, begin, dropout, mid);
      expand_rows(mid, padded, b, r, outputs, static_cast<S>(f.scale), rows, begin, {}, to);
    });
  });
  return h;
}

void lora_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& h, int64_t begin,
                   int64_t end, const LoraFactors& f, const LoraDropout& dropout, at::Tensor& dx,
                   at::Tensor& grad_a, at::Tensor& grad_b) {
  const int64_t inputs = x.size(1), outputs = dy.size(1), padded = f.a_IR.size(1), r = f.rank();
  at::Tensor dh = at::empty({end - begin, padded}, f.a.options());
  dispatch(x.scalar_type(), [&](auto type, auto scalar) {
    using T = decltype(type);
    using S = decltype(scalar);
    const T* dys = dy.const_data_ptr<T>();
    const S* bs = f.b_OR.const_data_ptr<S>();
    const S* as = f.a.const_data_ptr<S>();
    S* dhs = dh.mutable_data_ptr<S>();
    T* dxs = dx.defined() ? dx.mutable_data_ptr<T>() : nullptr;
    at::parallel_for(begin, end, grain((inputs + outputs) * padded), [&](int64_t lo, int64_t hi) {
      const Rows rows{lo, hi};
      shrink_rows(dys, outputs, bs, padded, static_cast<S>(f.scale), rows, begin, {}, dhs);
      if (dxs) expand_rows(dhs, padded, as, r, inputs, S(1), rows, begin, dropout, dxs);
    });
    const Rows rows{begin, end};
    if (grad_a.defined()) {
      const T* xs = x.const_data_ptr<T>();
      S* to = grad_a.mutable_data_ptr<S>();
      at::parallel_for(0, (inputs + 63) / 64, grain((end - begin) * r * 64),
                       [&](int64_t lo, int64_t hi) {
                         outer_columns(dhs, padded, xs, r, inputs, rows,
                                       {lo * 64, std::min(hi * 64, inputs)}, dropout, false, to);
                       });
    }
    if (grad_b.defined()) {
      // The scale is folded into h, whose rows are few.
      const at::Tensor scaled = h * f.scale;
      const S* hs = scaled.const_data_ptr<S>();
      S* to = grad_b.mutable_data_ptr<S>();
      at::parallel_for(0, (outputs + 63) / 64, grain((end - begin) * r * 64),
                       [&](int64_t lo, int64_t hi) {
                         outer_columns(hs, padded, dys, r, outputs, rows,
                                       {lo * 64, std::min(hi * 64, outputs)}, {}, true, to);
                       });
    }
  });
}

at::Tensor lora_dropout_mask(int64_t rows, int64_t inputs, const LoraDropout& dropout) {
  at::Tensor mask = at::ones({rows, inputs}, at::kFloat);
  if (dropout.key == 0) return mask;
  float* to = mask.mutable_data_ptr<float>();
  for (int64_t t = 0; t < rows; ++t) mask_row(to + t * inputs, inputs, t, dropout);
  return mask;
}

}  // namespace twinkle::kernels
