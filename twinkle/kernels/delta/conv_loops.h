// The causal convolution in front of the gated delta rule, a channel by itself, and the gated norm
// behind it, and the gate of attention's output. Compiled once per instruction set (see simd.h). A
// channel's row depends on its own last four inputs alone, a norm's row on that row.
#pragma once
#include "twinkle/kernels/delta/delta_block.h"
#include "twinkle/kernels/simd/rows.h"

namespace twinkle::kernels::TWINKLE_ISA {

// The sum over the taps, the oldest input first; x[3] is the newest.
template <class A>
inline Lanes<A> convolved(const Lanes<A> (&weight)[kConvTaps], const Lanes<A> (&x)[kConvTaps]) {
  return fma(weight[3], x[3], fma(weight[2], x[2], fma(weight[1], x[1], weight[0] * x[0])));
}

// out_t = silu(sum_j weight_j x_(t - 3 + j)), zeros before the sequence.
template <class T, class A>
void conv_forward(const ConvBlock<T>& p) {
  for (int64_t c = p.begin; c < p.end; c += kLanes<A>) {
    const int64_t left = p.end - c;
    Lanes<A> weight[kConvTaps], x[kConvTaps] = {};
    for (int64_t j = 0; j < kConvTaps; ++j) weight[j] = load<A>(p.weight + j * p.stride + c, left);
    for (int64_t j = 1; j < kConvTaps && !p.from_start; ++j) {
      x[j] = load<A>(p.past + (j - 1) * p.stride + c, left);
    }
    for (int64_t t = 0; t < p.count; ++t) {
      for (int64_t j = 1; j < kConvTaps; ++j) x[j - 1] = x[j];
      x[3] = load<A>(p.x + t * p.stride + c, left);
      const auto sum = convolved<A>(weight, x);
      store<T, A>(p.out + t * p.stride + c, sum / (exp(-sum) + A{1}), left);
    }
    if (p.past == nullptr) continue;
    for (int64_t j = 1; j < kConvTaps; ++j) {
      store<T, A>(p.past + (j - 1) * p.stride + c, x[j], left);
    }
  }
}

template <class T, class A>
void conv_backward(const ConvGradBlock<T>& p) {
  for (int64_t c = p.begin; c < p.end; c += kLanes<A>) {
    const int64_t left = p.end - c;
    Lanes<A> weight[kConvTaps], dweight[kConvTaps] = {};
    Lanes<A> later[kConvTaps] = {};  // sums of d: this row's, the next one's, ...
    for (int64_t j = 0; j < kConvTaps; ++j) weight[j] = load<A>(p.weight + j * p.stride + c, left);
    for (int64_t t = p.count - 1; t >= 0; --t) {
      Lanes<A> x[kConvTaps];
      for (int64_t j = 0; j < kConvTaps; ++j) {
        const int64_t row = t - 3 + j;
        x[j] = row >= 0 ? load<A>(p.x + row * p.stride + c, left) : Lanes<A>{};
      }
      const auto sum = convolved<A>(weight, x);
      const auto s = A{1} / (exp(-sum) + A{1});
      for (int64_t j = kConvTaps - 1; j > 0; --j) later[j] = later[j - 1];
      const auto slope = s * fma(sum, A{1} - s, splat(A{1}));
      later[0] = load<A>(p.grad + t * p.stride + c, left) * slope;
      const Lanes<A> reversed[kConvTaps] = {later[3], later[2], later[1], later[0]};
      store<T, A>(p.dx + t * p.stride + c, convolved<A>(weight, reversed), left);
      for (int64_t j = 0; j < kConvTaps; ++j) dweight[j] = fma(later[0], x[j], dweight[j]);
    }
    if (p.dweight == nullptr) continue;
    for (int64_t i = 0; i < kLanes<A> && i < left; ++i) {
      for (int64_t j = 0; j < kConvTaps; ++j) p.dweight[(c + i) * kConvTaps + j] += dweight[j][i];
    }
  }
}

// x sigmoid(gate)
template <class T, class A>
void sigmoid_gate(const T* x, const T* gate, int64_t count, T* y) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t left = count - i;
    store<T, A>(y + i, load<A>(x + i, left) / (exp(-load<A>(gate + i, left)) + A{1}), left);
  }
}

template <class T, class A>
void sigmoid_gate_backward(const T* grad, const T* x, const T* gate, int64_t count, T* dx,
                           T* dgate) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t left = count - i;
    const auto s = A{1} / (exp(-load<A>(gate + i, left)) + A{1}), dy = load<A>(grad + i, left);
    store<T, A>(dx + i, dy * s, left);
    store<T, A>(dgate + i, dy * load<A>(x + i, left) * s * (A{1} - s), left);
  }
}

// Rows of the norm: x, gate and what goes with them are [rows][width].
template <class T, class A>
void gated_norm(const GatedNormRows<T>& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const T *x = p.x + r * p.width, *gate = p.gate + r * p.width;
    const auto scale = splat(rms_scale<T, A>(x, p.width, p.eps));
    for (int64_t i = 0; i < p.width; i += kLanes<A>) {
      const int64_t left = p.width - i;
      const auto g = load<A>(gate + i, left);
      const auto normed = load<A>(x + i, left) * scale * load<A>(p.weight + i, left);
      store<T, A>(p.out + r * p.width + i, normed * (g / (exp(-g) + A{1})), left);
    }
  }
}

template <class T, class A>
void gated_norm_backward(const GatedNormRows<T>& p) {
  for (int64_t r = 0; r < p.rows; ++r) {
    const int64_t at = r * p.width;
    const A s = rms_scale<T, A>(p.x + at, p.width, p.eps);
    Lanes<A> part{};
    for (int64_t i = 0; i < p.width; i += kLanes<A>) {
      const int64_t left = p.width - i;
      const auto g = load<A>(p.gate + at + i, left), sigmoid = A{1} / (exp(-g) + A{1});
      const auto dy = load<A>(p.grad + at + i, left), x = load<A>(p.x + at + i, left);
      const auto weighted = dy * load<A>(p.weight + i, left);
      const auto slope = sigmoid * fma(g, A{1} - sigmoid, splat(A{1}));
      store<T, A>(p.dgate + at + i, weighted * x * splat(s) * slope, left);
      part = fma(weighted * (g * sigmoid), x, part);
    }
    const auto scale = splat(s), back = splat(-s * s * sum<A>(part) / static_cast<A>(p.width));
    for (int64_t i = 0; i < p.width; i += kLanes<A>) {
      const int64_t left = p.width - i;
      const auto g = load<A>(p.gate + at + i, left);
      const auto dn =
          load<A>(p.grad + at + i, left) * load<A>(p.weight + i, left) * (g / (exp(-g) + A{1}));
      store<T, A>(p.dx + at + i, scale * fma(back, load<A>(p.x + at + i, left), dn), left);
    }
  }
}

// sum += the weight's gradient over the rows, for columns [begin, end): from zero, added once.
template <class T, class A>
void gated_norm_weight(const GatedNormRows<T>& p, const A* scale, int64_t begin, int64_t end,
                       A* sum) {
  for (int64_t i = begin; i < end; i += kLanes<A>) {
    const int64_t left = end - i;
    Lanes<A> part{};
    for (int64_t r = 0; r < p.rows; ++r) {
      const int64_t at = r * p.width + i;
      const auto g = load<A>(p.gate + at, left);
      const auto normed = load<A>(p.x + at, left) * splat(scale[r]) * (g / (exp(-g) + A{1}));
      part = fma(load<A>(p.grad + at, left), normed, part);
    }
    store<A, A>(sum + i, load<A>(sum + i, left) + part, left);
  }
}

}  // namespace twinkle::kernels::TWINKLE_ISA
