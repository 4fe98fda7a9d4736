// Vectors of floats as wide as the instruction set that includes this header (see simd.h): loads
// and stores with conversion, exp, tanh, sums in a fixed order. Compiled once per instruction set,
// each time in its own namespace. No standard library here: what it inlines would be compiled for
// the wrong instruction set.
#pragma once
#ifndef TWINKLE_ISA
#error "included by the simd_*.cpp files only"
#endif

namespace twinkle::kernels::TWINKLE_ISA {

// Stated rather than asked of the compiler: g++ -E, which compiler caches use, does not follow
// #pragma GCC target.
inline constexpr int kVectorBytes = TWINKLE_VECTOR_BYTES;
// With 4 vectors a row, 24 of AVX-512's 32 registers, 12 of the 16 of the others.
inline constexpr int kProductRows = kVectorBytes == 64 ? 6 : 3;

// kCount elements of type E; `Loose` is the same without alignment, for access through pointers.
template <class E, int kCount>
struct Pack {
  typedef E type __attribute__((vector_size(kCount * sizeof(E))));
  typedef E Loose __attribute__((vector_size(kCount * sizeof(E)), aligned(sizeof(E)), may_alias));
};
template <class A>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(A));
template <class A>
using Lanes = typename Pack<A, kLanes<A>>::type;

template <class A>
inline Lanes<A> splat(A x) {
  return x - Lanes<A>{};  // a plain broadcast: 0 + x would have to turn -0 into 0
}

inline Lanes<float> fma(Lanes<float> a, Lanes<float> b, Lanes<float> c) {
#if TWINKLE_VECTOR_BYTES == 64
  return _mm512_fmadd_ps(a, b, c);
#elif TWINKLE_VECTOR_BYTES == 32
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
inline Lanes<double> fma(Lanes<double> a, Lanes<double> b, Lanes<double> c) {
#if TWINKLE_VECTOR_BYTES == 64
  return _mm512_fmadd_pd(a, b, c);
#elif TWINKLE_VECTOR_BYTES == 32
  return _mm256_fmadd_pd(a, b, c);
#else
  return a * b + c;
#endif
}

// sum[0] += the first half of x, sum[1] += the second.
inline void add_widened(Lanes<float> x, Lanes<double> (&sum)[2]) {
  typename Pack<float, kLanes<double>>::type halves[2];
  __builtin_memcpy(halves, &x, sizeof x);
  for (int i = 0; i < 2; ++i) sum[i] += __builtin_convertvector(halves[i], Lanes<double>);
}
inline void add_widened(Lanes<double> x, Lanes<double> (&sum)[2]) { sum[0] += x; }

// The square root of each.
inline Lanes<float> root(Lanes<float> x) {
#if TWINKLE_VECTOR_BYTES == 64
  return _mm512_maskz_sqrt_ps(0xffff, x);  // GCC 12 warns of the unmasked one
#elif TWINKLE_VECTOR_BYTES == 32
  return _mm256_sqrt_ps(x);
#else
  for (int i = 0; i < kLanes<float>; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
#endif
}

template <class A, class T>
inline Lanes<A> load(const T* p) {
  constexpr int n = kLanes<A>;
  if constexpr (sizeof(T) == 2) {
    const auto bits = *reinterpret_cast<const typename Pack<uint16_t, n>::Loose*>(p);
    typedef typename Pack<uint32_t, n>::type Wide;
    const Wide wide = __builtin_convertvector(bits, Wide) << 16;
    return reinterpret_cast<typename Pack<float, n>::type>(wide);
  } else {
    typedef typename Pack<A, n>::type Out;
    return __builtin_convertvector(*reinterpret_cast<const typename Pack<T, n>::Loose*>(p), Out);
  }
}

// To bf16: nearest, ties to even; a NaN stays one.
template <class T, class A>
inline void store(T* p, Lanes<A> x) {
  constexpr int n = kLanes<A>;
#ifdef TWINKLE_BF16_INSTRUCTIONS
  if constexpr (sizeof(T) == 2) {
    typedef typename Pack<uint16_t, n>::type Narrow;
    *reinterpret_cast<typename Pack<uint16_t, n>::Loose*>(p) =
        reinterpret_cast<Narrow>(_mm512_cvtneps_pbh(x));
    return;
  }
#endif
  if constexpr (sizeof(T) == 2) {
    typedef typename Pack<uint32_t, n>::type Wide;
    typedef typename Pack<uint16_t, n>::type Narrow;
    const Wide bits = reinterpret_cast<Wide>(x);
    const Wide rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Wide out = x == x ? rounded : Wide{} + 0x7fc0u;
    *reinterpret_cast<typename Pack<uint16_t, n>::Loose*>(p) = __builtin_convertvector(out, Narrow);
  } else {
    typedef typename Pack<T, n>::type Out;
    *reinterpret_cast<typename Pack<T, n>::Loose*>(p) = __builtin_convertvector(x, Out);
  }
}

// The first `count` elements, zero behind them.
template <class A, class T>
inline Lanes<A> load(const T* p, int64_t count) {
  if (count >= kLanes<A>) return load<A>(p);
  alignas(kVectorBytes) T part[kLanes<A>];
  __builtin_memset(static_cast<void*>(part), 0, sizeof(part));
  __builtin_memcpy(static_cast<void*>(part), p, count * sizeof(T));
  return load<A>(part);
}

template <class T, class A>
inline void store(T* p, Lanes<A> x, int64_t count) {
  if (count >= kLanes<A>) return store<T, A>(p, x);
  alignas(kVectorBytes) unsigned char part[kLanes<A> * sizeof(T)];
  store<T, A>(reinterpret_cast<T*>(part), x);
  __builtin_memcpy(static_cast<void*>(p), part, count * sizeof(T));
}

// A step of a dot product of a row of In and one of T: kCount elements of each, in the lanes of a
// sum.
template <class In, class T>
struct DotStep {
  using A = Wide<T>;
  using Left = Lanes<A>;
  static constexpr int kCount = kLanes<A>;
  static Lanes<A> left(const In* p, int64_t count) { return load<A>(p, count); }
  static Lanes<A> right(const T* p, int64_t count) { return load<A>(p, count); }
  static Lanes<A> add(Lanes<A> x, Lanes<A> w, Lanes<A> sum) { return fma(x, w, sum); }
};

#ifdef TWINKLE_BF16_INSTRUCTIONS
// Pairs of elements, a pair's second product first.
template <>
struct DotStep<c10::BFloat16, c10::BFloat16> {
  using Left = __m512bh;
  static constexpr int kCount = 32;
  static __m512bh left(const c10::BFloat16* p, int64_t count) {
    const auto mask = count < kCount ? (1u << count) - 1 : ~0u;
    return (__m512bh)_mm512_maskz_loadu_epi16(mask, p);
  }
  static __m512bh right(const c10::BFloat16* p, int64_t count) { return left(p, count); }
  static Lanes<float> add(__m512bh x, __m512bh w, Lanes<float> sum) {
    return _mm512_dpbf16_ps(sum, x, w);
  }
};
#endif

template <class A>
struct LaneIndex;
template <>
struct LaneIndex<float> {
  typedef int32_t Type;
};
template <>
struct LaneIndex<double> {
  typedef int64_t Type;
};

// Lane i of the result is lane i ^ width.
template <class A>
inline Lanes<A> swapped(Lanes<A> x, int width) {
  typename Pack<typename LaneIndex<A>::Type, kLanes<A>>::type index;
  for (int i = 0; i < kLanes<A>; ++i) index[i] = i ^ width;
  return __builtin_shuffle(x, index);
}

// Halves added to halves: the order depends on nothing but the width.
template <class A>
inline A sum(Lanes<A> x) {
#pragma GCC unroll 4
  for (int width = kLanes<A> / 2; width > 0; width /= 2) x += swapped<A>(x, width);
  return x[0];
}

// Element i of the result is sum(x[i]), bit for bit, of as many vectors as there are lanes; x is
// used up.
template <class A, int width = kLanes<A> / 2>
inline Lanes<A> sums(Lanes<A>* x) {
  constexpr int n = kLanes<A>;
  typename Pack<typename LaneIndex<A>::Type, n>::type low, high;
  for (int i = 0; i < n; ++i) {
    low[i] = (i / width % 2) * n + i / (2 * width) * (2 * width) + i % width;
    high[i] = low[i] + width;
  }
#pragma GCC unroll 8
  for (int i = 0; i < width; ++i) {
    x[i] = __builtin_shuffle(x[i], x[i + width], low) + __builtin_shuffle(x[i], x[i + width], high);
  }
  if constexpr (width > 1) return sums<A, width / 2>(x);
  return x[0];
}

template <class A>
inline A largest(Lanes<A> x) {
#pragma GCC unroll 4
  for (int width = kLanes<A> / 2; width > 0; width /= 2) {
    const auto other = swapped<A>(x, width);
    x = other > x ? other : x;
  }
  return x[0];
}

// Relative error below 2e-7; 0 below -87.3 (so exp(-inf) is 0), infinity above 88.
inline Lanes<float> exp(Lanes<float> x) {
  typedef Pack<uint32_t, kLanes<float>>::type Bits;
  const Lanes<float> shift =
      splat(12582912.f);  // 1.5 * 2^23: its low bits hold the rounded integer
  const Lanes<float> shifted = fma(x, splat(1.44269504088896341f), shift);
  const Lanes<float> n = shifted - shift;
  Lanes<float> r = fma(n, splat(-0.693359375f), x);
  r = fma(n, splat(2.12194440e-4f), r);
  Lanes<float> p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  p = fma(p, r * r, r + 1.f);
  const Bits power = (reinterpret_cast<Bits>(shifted) << 23) + (127u << 23);
  const Lanes<float> y = p * reinterpret_cast<Lanes<float>>(power);
  const Lanes<float> low = x < -87.3f ? Lanes<float>{} : y;
  return x > 88.f ? splat(__builtin_inff()) : low;
}

inline Lanes<double> exp(Lanes<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

// Relative error below 4e-7: near 0, where 1 - 2 / (exp(2 |x|) + 1) cancels, by a polynomial.
inline Lanes<float> tanh(Lanes<float> x) {
  const Lanes<float> size = x < 0.f ? -x : x, z = x * x;
  Lanes<float> p = splat(-5.70498872745e-3f);
  p = fma(p, z, splat(2.06390887954e-2f));
  p = fma(p, z, splat(-5.37397155531e-2f));
  p = fma(p, z, splat(1.33314422036e-1f));
  p = fma(p, z, splat(-3.33332819422e-1f));
  const Lanes<float> small = fma(p * z, x, x), large = 1.f - 2.f / (exp(size + size) + 1.f);
  const Lanes<float> either = x < 0.f ? -large : large;
  return size < 0.625f ? small : either;
}

inline Lanes<double> tanh(Lanes<double> x) {
  for (int i = 0; i < kLanes<double>; ++i) x[i] = __builtin_tanh(x[i]);
  return x;
}

}  // namespace twinkle::kernels::TWINKLE_ISA
