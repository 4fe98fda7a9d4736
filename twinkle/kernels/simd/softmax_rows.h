// The row loops of softmax and of logits' softcap. Compiled once per instruction set (see simd.h).
// A row's result depends on that row alone.
#pragma once
#include "twinkle/kernels/simd/lanes.h"

namespace twinkle::kernels::TWINKLE_ISA {

// The first `count` logits, -inf behind them.
template <class A, class T>
inline Lanes<A> load_logits(const T* p, int64_t count) {
  auto x = load<A>(p, count);
  for (int i = 0; count < kLanes<A> && i < kLanes<A>; ++i) {
    if (i >= count) x[i] = -static_cast<A>(__builtin_inf());
  }
  return x;
}

// A NaN is lost here, but not in the sum of exponentials.
template <class T, class A>
inline A largest_logit(const T* row, int64_t vocab) {
  constexpr int n = kLanes<A>;
  Lanes<A> tops[4];
  for (auto& top : tops) top = splat(-static_cast<A>(__builtin_inf()));
  int64_t i = 0;
  for (; i + 4 * n <= vocab; i += 4 * n) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const auto x = load<A>(row + i + j * n);
      tops[j] = tops[j] > x ? tops[j] : x;
    }
  }
  for (; i < vocab; i += n) {
    const auto x = load_logits<A>(row + i, vocab - i);
    tops[0] = tops[0] > x ? tops[0] : x;
  }
  for (int j = 1; j < 4; ++j) tops[0] = tops[0] > tops[j] ? tops[0] : tops[j];
  return largest<A>(tops[0]);
}

// The exponentials are summed in double: an error of their sum is one of every probability, and the
// gradients of a vocabulary's probabilities cancel.
template <class A>
struct ExpSums {
  Lanes<double> sum[2]{};
  Lanes<A> weighted{};

  template <bool kEntropy>
  __attribute__((always_inline)) void add(Lanes<A> shifted) {
    const auto e = exp(shifted);
    add_widened(e, sum);
    // 0 times -inf is 0 here: a logit that cannot be drawn.
    if constexpr (kEntropy) weighted += e > 0 ? e * shifted : e;
  }
};

template <bool kEntropy, class T, class A>
inline ExpSums<A> exp_sums(const T* row, int64_t vocab, A inverse, A top) {
  constexpr int n = kLanes<A>;
  const auto scale = splat(inverse), shift = splat(-top);
  ExpSums<A> parts[2];
  int64_t i = 0;
  for (; i + 2 * n <= vocab; i += 2 * n) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      parts[j].template add<kEntropy>(fma(load<A>(row + i + j * n), scale, shift));
    }
  }
  for (; i < vocab; i += n) {
    parts[0].template add<kEntropy>(fma(load_logits<A>(row + i, vocab - i), scale, shift));
  }
  for (int half = 0; half < 2; ++half) parts[0].sum[half] += parts[1].sum[half];
  parts[0].weighted += parts[1].weighted;
  return parts[0];
}

// log p(id) of a row whose stats are known.
template <class T, class A>
A softmax_logprob(const T* row, int64_t id, A temperature, const RowStats& stats) {
  const auto shift = splat(-static_cast<A>(stats.top));
  const auto shifted = fma(load<A>(row + id, 1), splat(1 / temperature), shift);
  return static_cast<A>(shifted[0] - __builtin_log(stats.sum));
}

template <class T, class A>
RowStats softmax_stats(const T* row, int64_t vocab, int64_t id, A temperature, bool entropy) {
  const A inverse = 1 / temperature, top = largest_logit<T, A>(row, vocab) * inverse;
  const auto sums = entropy ? exp_sums<true>(row, vocab, inverse, top)
                            : exp_sums<false>(row, vocab, inverse, top);
  RowStats out;
  out.top = top;
  out.sum = sum<double>(sums.sum[0] + sums.sum[1]);
  out.logprob = softmax_logprob(row, id, temperature, out);
  if (entropy) {
    out.entropy = static_cast<A>(__builtin_log(out.sum) - sum<A>(sums.weighted) / out.sum);
  }
  return out;
}

// d loss / d logit without what is the id's alone: of a logit z / temperature - top, as `shifted`,
// -grad p - entropy_grad p (log p + H), where p = exp(shifted) / sum and log p = shifted -
// log(sum).
template <bool kEntropy, class A>
struct LogitGrad {
  Lanes<A> factor, entropy_factor, entropy_shift;

  LogitGrad(const RowGrad& grad, A inverse)
      : factor(splat(-static_cast<A>(grad.grad) * inverse / static_cast<A>(grad.stats.sum))),
        entropy_factor(
            splat(-static_cast<A>(grad.entropy_grad) * inverse / static_cast<A>(grad.stats.sum))),
        entropy_shift(splat(static_cast<A>(grad.stats.entropy - __builtin_log(grad.stats.sum)))) {}

  __attribute__((always_inline)) Lanes<A> operator()(Lanes<A> shifted) const {
    const auto e = exp(shifted);
    if constexpr (!kEntropy) return e * factor;
    // 0 times -inf is 0 here: a logit that cannot be drawn.
    return e > 0 ? e * fma(entropy_factor, shifted + entropy_shift, factor) : e * factor;
  }
};

template <bool kEntropy, class T, class A>
inline void write_softmax_grad(T* row, int64_t vocab, int64_t id, A temperature,
                               const RowGrad& grad) {
  constexpr int n = kLanes<A>;
  const A inverse = 1 / temperature, slope = static_cast<A>(grad.grad) * inverse;
  const auto scale = splat(inverse), shift = splat(-static_cast<A>(grad.stats.top));
  const LogitGrad<kEntropy, A> of(grad, inverse);
  const auto at_id = splat(slope + of(fma(load<A>(row + id, 1), scale, shift))[0]);
  int64_t i = 0;
#pragma GCC unroll 2
  for (; i + n <= vocab; i += n) {
    store<T, A>(row + i, of(fma(load<A>(row + i), scale, shift)));
  }
  if (i < vocab) {
    store<T, A>(row + i, of(fma(load<A>(row + i, vocab - i), scale, shift)), vocab - i);
  }
  store<T, A>(row + id, at_id, 1);
}

template <class T, class A>
void softmax_grad(T* row, int64_t vocab, int64_t id, A temperature, const RowGrad& grad) {
  if (grad.entropy_grad == 0) return write_softmax_grad<false>(row, vocab, id, temperature, grad);
  write_softmax_grad<true>(row, vocab, id, temperature, grad);
}

template <class T, class A>
void softcap(T* x, int64_t count, A cap) {
  const auto inverse = splat(1 / cap);
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t left = count - i;
    store<T, A>(x + i, tanh(load<A>(x + i, left) * inverse) * splat(cap), left);
  }
}

// Given what softcap returned.
template <class T, class A>
void softcap_grad(T* grad, const T* capped, int64_t count, A cap) {
  const auto inverse = splat(1 / cap);
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t left = count - i;
    const auto t = load<A>(capped + i, left) * inverse;
    store<T, A>(grad + i, load<A>(grad + i, left) * (A{1} - t * t), left);
  }
}

}  // namespace twinkle::kernels::TWINKLE_ISA
