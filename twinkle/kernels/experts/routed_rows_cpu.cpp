#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <cstring>
#include <numeric>
#include <type_traits>

#include "twinkle/base/error.h"
#include "twinkle/kernels/experts/routed_rows.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/simd.h"
#include "twinkle/kernels/simd/tasks.h"

// Plain loops over rows in float32, which the compiler makes vectors of.
#define TWINKLE_CLONES [[gnu::target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")]]

namespace twinkle::kernels {
namespace {

TWINKLE_CLONES void widen(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t word = static_cast<uint32_t>(from[i]) << 16;
    std::memcpy(to + i, &word, 4);
  }
}

// Nearest, ties to even; a NaN stays one.
TWINKLE_CLONES void narrow(const float* from, int64_t count, uint16_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, from + i, 4);
    const uint32_t rounded = (word + 0x7fffu + (word >> 16 & 1u)) >> 16;
    to[i] = static_cast<uint16_t>(from[i] == from[i] ? rounded : 0x7fc0u);
  }
}

TWINKLE_CLONES void add(const float* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}
void add(const double* from, int64_t count, double* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

TWINKLE_CLONES void scale(float* x, int64_t count, float factor) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}
void scale(double* x, int64_t count, double factor) {
  for (int64_t i = 0; i < count; ++i) x[i] *= factor;
}

TWINKLE_CLONES void add_scaled(const float* from, float factor, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}
void add_scaled(const double* from, double factor, int64_t count, double* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

// Sixteen sums, then theirs.
template <class A>
inline __attribute__((always_inline)) A dot_of(const A* x, const A* y, int64_t count) {
  A sums[16] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    for (int64_t j = 0; j < 16; ++j) sums[j] += x[i + j] * y[i + j];
  }
  for (int64_t j = 0; i < count; ++i, ++j) sums[j] += x[i] * y[i];
  return std::accumulate(sums, sums + 16, A{0});
}
TWINKLE_CLONES float dot(const float* x, const float* y, int64_t count) {
  return dot_of(x, y, count);
}
double dot(const double* x, const double* y, int64_t count) { return dot_of(x, y, count); }

void read(const c10::BFloat16* from, int64_t count, float* to) {
  widen(reinterpret_cast<const uint16_t*>(from), count, to);
}
void write(const float* from, int64_t count, c10::BFloat16* to) {
  narrow(from, count, reinterpret_cast<uint16_t*>(to));
}
template <class A>
void read(const A* from, int64_t count, A* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(A));
}
template <class A>
void write(const A* from, int64_t count, A* to) {
  std::memcpy(to, from, static_cast<size_t>(count) * sizeof(A));
}

// Calls work(row, scratch) of each row; scratch is `size` numbers.
template <class A, class Work>
void each_row(int64_t rows, int64_t width, int64_t size, const Work& work) {
  parallel_for(0, rows, row_grain(width), [&](int64_t begin, int64_t end) {
    std::vector<A> scratch(static_cast<size_t>(size));
    for (int64_t r = begin; r < end; ++r) work(r, scratch.data());
  });
}

// The weights of the routed rows [R].
template <class A>
std::vector<A> by_row(const at::Tensor& weights, const RoutedRows& rows) {
  std::vector<A> out(rows.tokens.size());
  const A* weight = weights.const_data_ptr<A>();
  for (size_t i = 0; i < rows.places.size(); ++i)
    out[static_cast<size_t>(rows.places[i])] = weight[i];
  return out;
}

// The expert of each routed row.
std::vector<int64_t> experts_of(const RoutedRows& rows) {
  std::vector<int64_t> out;
  for (size_t e = 0; e + 1 < rows.offsets.size(); ++e)
    out.insert(out.end(), static_cast<size_t>(rows.offsets[e + 1] - rows.offsets[e]),
               static_cast<int64_t>(e));
  return out;
}

// The experts' biases in A, an expert at a time: bfloat16's are widened as they are read.
template <class A>
class Biases {
 public:
  explicit Biases(const at::Tensor& all)
      : narrow_(std::is_same_v<A, float> && all.scalar_type() == at::kBFloat16),
        all_((narrow_ ? all : all.to(c10::CppTypeToScalarType<A>::value)).contiguous()),
        width_(all.size(1)) {}

  // `scratch` has room for one.
  const A* of(int64_t expert, A* scratch) const {
    if constexpr (std::is_same_v<A, float>) {
      if (narrow_) {
        read(all_.const_data_ptr<c10::BFloat16>() + expert * width_, width_, scratch);
        return scratch;
      }
    }
    return all_.const_data_ptr<A>() + expert * width_;
  }

 private:
  bool narrow_;
  at::Tensor all_;  // [E, width]
  int64_t width_;
};

// A row's clamped inputs, as the plain SwiGLU takes them: with g' = alpha g and u' = u + 1 it is
// silu(g') u' / alpha. Comparisons keep a NaN.
template <class A>
inline __attribute__((always_inline)) void clamp_of(const A* row, int64_t width, A limit, A alpha,
                                                    A* gate, A* up) {
  for (int64_t i = 0; i < width; ++i) {
    const A g = row[2 * i], u = row[2 * i + 1];
    const A low = u < -limit ? -limit : u;
    gate[i] = (g > limit ? limit : g) * alpha;
    up[i] = (low > limit ? limit : low) + 1;
  }
}
TWINKLE_CLONES void clamp(const float* row, int64_t width, float limit, float alpha, float* gate,
                          float* up) {
  clamp_of(row, width, limit, alpha, gate, up);
}
void clamp(const double* row, int64_t width, double limit, double alpha, double* gate, double* up) {
  clamp_of(row, width, limit, alpha, gate, up);
}

// The slopes by g' and u' as those by a row's gates and ups; 0 where they were held.
template <class A>
inline __attribute__((always_inline)) void unclamp_of(const A* row, int64_t width, A limit, A alpha,
                                                      const A* gate, const A* up, A* to) {
  for (int64_t i = 0; i < width; ++i) {
    const A g = row[2 * i], u = row[2 * i + 1];
    to[2 * i] = g > limit ? 0 : gate[i];
    to[2 * i + 1] = u > limit || u < -limit ? 0 : up[i] / alpha;
  }
}
TWINKLE_CLONES void unclamp(const float* row, int64_t width, float limit, float alpha,
                            const float* gate, const float* up, float* to) {
  unclamp_of(row, width, limit, alpha, gate, up, to);
}
void unclamp(const double* row, int64_t width, double limit, double alpha, const double* gate,
             const double* up, double* to) {
  unclamp_of(row, width, limit, alpha, gate, up, to);
}

// The inputs of both passes of the clamped activation.
template <class T>
class ClampedRows {
 public:
  using A = Wide<T>;
  ClampedRows(const at::Tensor& gate_up, const at::Tensor& bias, const RoutedRows& rows,
              const ClampedSwiglu& options)
      : limit(static_cast<A>(options.limit)),
        alpha(static_cast<A>(options.alpha)),
        from_(gate_up.const_data_ptr<T>()),
        width_(gate_up.size(1) / 2),
        biases_(bias),
        experts_(experts_of(rows)) {}

  // Row r with its bias to row [2 F], and behind it what the plain SwiGLU takes: gates [F] and ups
  // [F].
  void read_row(int64_t r, A* row) const {
    A *const gate = row + 2 * width_, *const up = row + 3 * width_;
    read(from_ + r * 2 * width_, 2 * width_, row);
    add(biases_.of(experts_[static_cast<size_t>(r)], gate), 2 * width_, row);
    clamp(row, width_, limit, alpha, gate, up);
  }

  const A limit, alpha;

 private:
  const T* from_;
  int64_t width_;
  Biases<A> biases_;
  std::vector<int64_t> experts_;
};

}  // namespace

RoutedRows routed_rows(const at::Tensor& ids, int64_t num_experts) {
  require(ids.is_cpu() && ids.dim() == 2 && ids.is_contiguous() && ids.scalar_type() == at::kInt,
          Code::kInvalid, "kernels: the chosen experts' tensor is ", ids.scalar_type(), " ",
          ids.sizes(), " on ", ids.device().str(),
          ", it must be contiguous int32 [T, k] on the CPU: experts run there alone");
  RoutedRows out{.offsets = std::vector<int64_t>(static_cast<size_t>(num_experts) + 1),
                 .top_k = ids.size(1)};
  const size_t count = static_cast<size_t>(ids.numel()), k = static_cast<size_t>(out.top_k);
  const int32_t* id = ids.const_data_ptr<int32_t>();
  for (size_t i = 0; i < count; ++i) ++out.offsets[static_cast<size_t>(id[i]) + 1];
  std::partial_sum(out.offsets.begin(), out.offsets.end(), out.offsets.begin());
  std::vector<int64_t> next(out.offsets.begin(), out.offsets.end() - 1);
  out.tokens.resize(count);
  out.places.resize(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t row = next[static_cast<size_t>(id[i])]++;
    out.places[i] = row;
    out.tokens[static_cast<size_t>(row)] = static_cast<int64_t>(i / k);
  }
  return out;
}

at::Tensor gather_rows(const at::Tensor& x, const RoutedRows& rows) {
  const at::Tensor from = x.contiguous(),
                   out = at::empty({rows.num_rows(), x.size(1)}, x.options());
  const size_t size = static_cast<size_t>(x.size(1)) * x.element_size();
  const char* in = static_cast<const char*>(from.const_data_ptr());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  parallel_for(0, rows.num_rows(), row_grain(x.size(1)), [&](int64_t begin, int64_t end) {
    for (auto r = static_cast<size_t>(begin); r < static_cast<size_t>(end); ++r)
      std::memcpy(to + r * size, in + static_cast<size_t>(rows.tokens[r]) * size, size);
  });
  return out;
}

at::Tensor sum_rows(const at::Tensor& y, const RoutedRows& rows) {
  const int64_t width = y.size(1), k = rows.top_k;
  const at::Tensor out = at::empty({rows.num_tokens(), width}, y.options());
  with_type(y, "the experts' output", [&]<class T>(T) {
    using A = Wide<T>;
    const T* from = y.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    each_row<A>(rows.num_tokens(), k * width, 2 * width, [&](int64_t t, A* sum) {
      const int64_t* place = rows.places.data() + t * k;
      read(from + place[0] * width, width, sum);
      for (int64_t j = 1; j < k; ++j) {
        read(from + place[j] * width, width, sum + width);
        add(sum + width, width, sum);
      }
      write(sum, width, to + t * width);
    });
  });
  return out;
}

at::Tensor routed_swiglu(const at::Tensor& gate_up, const at::Tensor& weights,
                         const RoutedRows& rows) {
  const int64_t width = gate_up.size(1) / 2;
  const at::Tensor out = at::empty({rows.num_rows(), width}, gate_up.options());
  with_type(gate_up, "the experts' gate_up", [&]<class T>(T) {
    using A = Wide<T>;
    const auto& loops = best_simd().loops<A>();
    const std::vector<A> weight = by_row<A>(weights, rows);
    const T* from = gate_up.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    each_row<A>(rows.num_rows(), 4 * width, 3 * width, [&](int64_t r, A* row) {
      read(from + r * 2 * width, 2 * width, row);
      A* const h = row + 2 * width;
      loops.swiglu(row, row + width, width, h);
      scale(h, width, weight[static_cast<size_t>(r)]);
      write(h, width, to + r * width);
    });
  });
  return out;
}

RoutedSwigluGrads routed_swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up,
                                         const at::Tensor& weights, const RoutedRows& rows) {
  const int64_t width = gate_up.size(1) / 2;
  RoutedSwigluGrads out{at::empty_like(gate_up), at::empty_like(weights)};
  with_type(gate_up, "the experts' gate_up", [&]<class T>(T) {
    using A = Wide<T>;
    const auto& loops = best_simd().loops<A>();
    const std::vector<A> weight = by_row<A>(weights, rows);
    std::vector<A> dots(weight.size());
    const T *from = gate_up.const_data_ptr<T>(), *slope = grad.const_data_ptr<T>();
    T* to = out.gate_up.mutable_data_ptr<T>();
    each_row<A>(rows.num_rows(), 8 * width, 6 * width, [&](int64_t r, A* row) {
      A *const d = row + 2 * width, *const h = row + 3 * width, *const slopes = row + 4 * width;
      read(from + r * 2 * width, 2 * width, row);
      read(slope + r * width, width, d);
      loops.swiglu(row, row + width, width, h);
      dots[static_cast<size_t>(r)] = dot(d, h, width);
      scale(d, width, weight[static_cast<size_t>(r)]);
      loops.swiglu_backward(d, row, row + width, width, slopes, slopes + width);
      write(slopes, 2 * width, to + r * 2 * width);
    });
    A* dweight = out.weights.mutable_data_ptr<A>();
    for (size_t i = 0; i < rows.places.size(); ++i)
      dweight[i] = dots[static_cast<size_t>(rows.places[i])];
  });
  return out;
}

at::Tensor routed_clamped_swiglu(const at::Tensor& gate_up, const at::Tensor& bias,
                                 const at::Tensor& weights, const RoutedRows& rows,
                                 const ClampedSwiglu& options) {
  const int64_t width = gate_up.size(1) / 2;
  const at::Tensor out = at::empty({rows.num_rows(), width}, gate_up.options());
  with_type(gate_up, "the experts' gate_up", [&]<class T>(T) {
    using A = Wide<T>;
    const auto& loops = best_simd().loops<A>();
    const ClampedRows<T> in(gate_up, bias, rows, options);
    const std::vector<A> weight = by_row<A>(weights, rows);
    T* to = out.mutable_data_ptr<T>();
    each_row<A>(rows.num_rows(), 4 * width, 5 * width, [&](int64_t r, A* row) {
      in.read_row(r, row);
      A *const gate = row + 2 * width, *const up = row + 3 * width, *const h = row + 4 * width;
      loops.swiglu(gate, up, width, h);
      scale(h, width, weight[static_cast<size_t>(r)] / in.alpha);
      write(h, width, to + r * width);
    });
  });
  return out;
}

RoutedSwigluGrads routed_clamped_swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up,
                                                 const at::Tensor& bias, const at::Tensor& weights,
                                                 const RoutedRows& rows,
                                                 const ClampedSwiglu& options) {
  const int64_t width = gate_up.size(1) / 2;
  RoutedSwigluGrads out{at::empty_like(gate_up), at::empty_like(weights)};
  with_type(gate_up, "the experts' gate_up", [&]<class T>(T) {
    using A = Wide<T>;
    const auto& loops = best_simd().loops<A>();
    const ClampedRows<T> in(gate_up, bias, rows, options);
    const std::vector<A> weight = by_row<A>(weights, rows);
    std::vector<A> dots(weight.size());
    const T* slope = grad.const_data_ptr<T>();
    T* to = out.gate_up.mutable_data_ptr<T>();
    each_row<A>(rows.num_rows(), 8 * width, 10 * width, [&](int64_t r, A* row) {
      const auto at = static_cast<size_t>(r);
      in.read_row(r, row);
      A *const gate = row + 2 * width, *const up = row + 3 * width, *const d = row + 4 * width;
      A *const h = row + 5 * width, *const slopes = row + 6 * width, *const both = row + 8 * width;
      read(slope + r * width, width, d);
      loops.swiglu(gate, up, width, h);
      dots[at] = dot(d, h, width) / in.alpha;
      scale(d, width, weight[at]);
      loops.swiglu_backward(d, gate, up, width, slopes, slopes + width);
      unclamp(row, width, in.limit, in.alpha, slopes, slopes + width, both);
      write(both, 2 * width, to + r * 2 * width);
    });
    A* dweight = out.weights.mutable_data_ptr<A>();
    for (size_t i = 0; i < rows.places.size(); ++i)
      dweight[i] = dots[static_cast<size_t>(rows.places[i])];
  });
  return out;
}

at::Tensor sum_biased_rows(const at::Tensor& y, const at::Tensor& bias, const at::Tensor& weights,
                           const RoutedRows& rows) {
  const int64_t width = y.size(1), k = rows.top_k;
  const at::Tensor out = at::empty({rows.num_tokens(), width}, y.options());
  const std::vector<int64_t> expert = experts_of(rows);
  with_type(y, "the experts' output", [&]<class T>(T) {
    using A = Wide<T>;
    const Biases<A> biases(bias);
    const A* weight = weights.const_data_ptr<A>();
    const T* from = y.const_data_ptr<T>();
    T* to = out.mutable_data_ptr<T>();
    each_row<A>(rows.num_tokens(), 2 * k * width, 3 * width, [&](int64_t t, A* sum) {
      const int64_t* place = rows.places.data() + t * k;
      A* const scratch = sum + 2 * width;
      for (int64_t j = 0; j < k; ++j) {
        A* const mine = sum + (j == 0 ? 0 : width);
        read(from + place[j] * width, width, mine);
        const int64_t e = expert[static_cast<size_t>(place[j])];
        add_scaled(biases.of(e, scratch), weight[t * k + j], width, mine);
        if (j > 0) add(mine, width, sum);
      }
      write(sum, width, to + t * width);
    });
  });
  return out;
}

at::Tensor biased_rows_backward(const at::Tensor& grad, const at::Tensor& bias,
                                const RoutedRows& rows) {
  const int64_t width = grad.size(1);
  at::Tensor out;
  const std::vector<int64_t> expert = experts_of(rows);
  with_type(grad, "the experts' gradient", [&]<class T>(T) {
    using A = Wide<T>;
    out = at::empty({rows.num_tokens(), rows.top_k}, c10::CppTypeToScalarType<A>::value);
    const Biases<A> biases(bias);
    const T* from = grad.const_data_ptr<T>();
    A* to = out.mutable_data_ptr<A>();
    each_row<A>(std::ssize(rows.places), width, 2 * width, [&](int64_t i, A* row) {
      const int64_t place = rows.places[static_cast<size_t>(i)];
      read(from + place * width, width, row);
      to[i] = dot(row, biases.of(expert[static_cast<size_t>(place)], row + width), width);
    });
  });
  return out;
}

}  // namespace twinkle::kernels
