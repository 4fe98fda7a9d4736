// The row loops of rms_norm, rope, swiglu and geglu. Compiled once per instruction set (see
// simd.h). A row's result depends on that row alone.
#pragma once
#include "twinkle/kernels/simd/lanes.h"

namespace twinkle::kernels::TWINKLE_ISA {

template <class T, class A>
inline A rms_scale(const T* x, int64_t width, A eps) {
  constexpr int n = kLanes<A>;
  Lanes<A> part[4] = {};
  int64_t i = 0;
  for (; i + 4 * n <= width; i += 4 * n) {
    for (int j = 0; j < 4; ++j) {
      const auto v = load<A>(x + i + j * n);
      part[j] = fma(v, v, part[j]);
    }
  }
  for (; i < width; i += n) {
    const auto v = load<A>(x + i, width - i);
    part[0] = fma(v, v, part[0]);
  }
  const A mean = sum<A>((part[0] + part[1]) + (part[2] + part[3])) / static_cast<A>(width);
  return 1 / static_cast<A>(__builtin_sqrt(mean + eps));
}

template <class T, class A>
void rms_scales(const T* x, int64_t rows, int64_t width, A eps, A* scale) {
  for (int64_t r = 0; r < rows; ++r) scale[r] = rms_scale(x + r * width, width, eps);
}

template <class T, class A, class W>
void rms_norm(const T* x, const W* weight, int64_t rows, int64_t width, A eps, T* y) {
  for (int64_t r = 0; r < rows; ++r, x += width, y += width) {
    const auto scale = splat(rms_scale(x, width, eps));
    for (int64_t i = 0; i < width; i += kLanes<A>) {
      const int64_t left = width - i;
      store<T, A>(y + i, load<A>(x + i, left) * scale * load<A>(weight + i, left), left);
    }
  }
}

template <class T, class A>
void add(const T* a, const T* b, int64_t count, T* y) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t left = count - i;
    store<T, A>(y + i, load<A>(a + i, left) + load<A>(b + i, left), left);
  }
}

// dx = s (g w - x s mean(g w x s)) with s = 1 / sqrt(mean(x^2) + eps).
template <class T, class A>
void rms_norm_backward(const T* grad, const T* x, const A* weight, int64_t rows, int64_t width,
                       A eps, T* dx) {
  for (int64_t r = 0; r < rows; ++r, grad += width, x += width, dx += width) {
    const A s = rms_scale(x, width, eps);
    Lanes<A> part{};
    for (int64_t i = 0; i < width; i += kLanes<A>) {
      const int64_t left = width - i;
      const auto gw = load<A>(grad + i, left) * load<A>(weight + i, left);
      part = fma(gw, load<A>(x + i, left), part);
    }
    const auto scale = splat(s), slope = splat(-s * s * sum<A>(part) / static_cast<A>(width));
    for (int64_t i = 0; i < width; i += kLanes<A>) {
      const int64_t left = width - i;
      const auto gw = load<A>(grad + i, left) * load<A>(weight + i, left);
      store<T, A>(dx + i, scale * fma(slope, load<A>(x + i, left), gw), left);
    }
  }
}

// sum[c] += sum over rows of grad x scale, for columns c in [begin, end): from zero, then added
// once.
template <class T, class A>
void rms_norm_weight(const T* grad, const T* x, const A* scale, int64_t rows, int64_t width,
                     int64_t begin, int64_t end, A* sum) {
  for (int64_t i = begin; i < end; i += kLanes<A>) {
    const int64_t left = end - i;
    Lanes<A> part{};
    for (int64_t r = 0; r < rows; ++r) {
      const auto x_hat = load<A>(x + r * width + i, left) * splat(scale[r]);
      part = fma(load<A>(grad + r * width + i, left), x_hat, part);
    }
    store<A, A>(sum + i, load<A>(sum + i, left) + part, left);
  }
}

// One token: every head's first 2 * half dims rotated, the rest copied. sign -1 rotates backwards.
template <class T, class A>
void rope(const T* x, const float* cos, const float* sin, int64_t heads, int64_t dim, int64_t half,
          A sign, T* y) {
  for (int64_t h = 0; h < heads; ++h, x += dim, y += dim) {
    for (int64_t i = 0; i < half; i += kLanes<A>) {
      const int64_t left = half - i;
      const auto c = load<A>(cos + i, left), s = load<A>(sin + i, left) * splat(sign);
      const auto a = load<A>(x + i, left), b = load<A>(x + half + i, left);
      store<T, A>(y + i, fma(a, c, -(b * s)), left);
      store<T, A>(y + half + i, fma(b, c, a * s), left);
    }
    if (x != y) {
      __builtin_memcpy(static_cast<void*>(y + 2 * half), x + 2 * half,
                       (dim - 2 * half) * sizeof(T));
    }
  }
}

// The same of neighbouring dims.
template <class T, class A>
void rope_pairs(const T* x, const float* cos, const float* sin, int64_t heads, int64_t dim,
                int64_t half, A sign, T* y) {
  constexpr int n = kLanes<A>;
  for (int64_t h = 0; h < heads; ++h, x += dim, y += dim) {
    for (int64_t i = 0; i < 2 * half; i += n) {
      const int64_t left = 2 * half - i;
      A from[n], to[n];
      store<A, A>(from, load<A>(x + i, left), n);
      for (int64_t j = 0; j < n && j < left; j += 2) {
        const A c = cos[(i + j) / 2], s = sin[(i + j) / 2] * sign;
        to[j] = from[j] * c - from[j + 1] * s;
        to[j + 1] = from[j + 1] * c + from[j] * s;
      }
      store<T, A>(y + i, load<A>(to, left), left);
    }
    if (x != y) {
      __builtin_memcpy(static_cast<void*>(y + 2 * half), x + 2 * half,
                       (dim - 2 * half) * sizeof(T));
    }
  }
}

template <class T, class A>
void swiglu(const T* gate, const T* up, int64_t count, T* y) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t left = count - i;
    const auto g = load<A>(gate + i, left);
    store<T, A>(y + i, g / (exp(-g) + A{1}) * load<A>(up + i, left), left);
  }
}

// Null outputs are skipped.
template <class T, class A>
void swiglu_backward(const T* grad, const T* gate, const T* up, int64_t count, T* dgate, T* dup) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t left = count - i;
    const auto go = load<A>(grad + i, left), g = load<A>(gate + i, left);
    const auto sigmoid = A{1} / (exp(-g) + A{1});
    if (dup != nullptr) store<T, A>(dup + i, go * (g * sigmoid), left);
    if (dgate != nullptr) {
      const auto slope = sigmoid * fma(g, A{1} - sigmoid, splat(A{1}));
      store<T, A>(dgate + i, go * load<A>(up + i, left) * slope, left);
    }
  }
}

// gelu(g) = g sigmoid(2 z) with z = sqrt(2 / pi) (g + 0.044715 g^3), as 1 + tanh(z) = 2 sigmoid(2
// z).
template <class A>
inline constexpr A kGelu = static_cast<A>(1.5957691216057308);  // 2 sqrt(2 / pi)
template <class A>
inline constexpr A kGeluCube = static_cast<A>(1.5957691216057308 * 0.044715);

// exp(-2 z), finite: beyond 80 its sigmoid is 0 either way.
template <class A>
inline Lanes<A> gelu_exp(Lanes<A> g) {
  const auto minus = g * fma(g * g, splat(-kGeluCube<A>), splat(-kGelu<A>));
  return exp(minus > splat(A{80}) ? splat(A{80}) : minus);
}

template <class T, class A>
void geglu(const T* gate, const T* up, int64_t count, T* y) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t left = count - i;
    const auto g = load<A>(gate + i, left);
    store<T, A>(y + i, g / (gelu_exp<A>(g) + A{1}) * load<A>(up + i, left), left);
  }
}

// Null outputs are skipped.
template <class T, class A>
void geglu_backward(const T* grad, const T* gate, const T* up, int64_t count, T* dgate, T* dup) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    const int64_t left = count - i;
    const auto go = load<A>(grad + i, left), g = load<A>(gate + i, left);
    const auto e = gelu_exp<A>(g), sigmoid = A{1} / (e + A{1});
    if (dup != nullptr) store<T, A>(dup + i, go * (g * sigmoid), left);
    if (dgate != nullptr) {
      // For far gates, sigmoid and 1 - sigmoid = e sigmoid, which is not computed as a difference,
      // are 0 and 1: no cube may be infinite.
      const auto above = g < splat(A{-16}) ? splat(A{-16}) : g;
      const auto near = above > splat(A{16}) ? splat(A{16}) : above;
      const auto of_two_z = fma(near * near, splat(3 * kGeluCube<A>), splat(kGelu<A>));
      const auto slope = sigmoid * fma(near * of_two_z, e * sigmoid, splat(A{1}));
      store<T, A>(dgate + i, go * load<A>(up + i, left) * slope, left);
    }
  }
}

}  // namespace twinkle::kernels::TWINKLE_ISA
