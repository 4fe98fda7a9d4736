// The gated delta rule in chunks of 64 positions, row by row inside a chunk: a row needs the state
// at the chunk's begin and the rows before it, so training, prompts in pieces and decoding run this
// one loop with one order of sums. Compiled once per instruction set (see simd.h). With S0 the
// state at the chunk's begin, b_i the sum of the decays up to i, in [0, i] of the chunk:
//   u_i = beta_i (v_i - e^b_i S0' k_i - sum_{j<i} e^(b_i - b_j) (k_i . k_j) u_j)
//   o_i = e^b_i S0' q_i + sum_{j<=i} e^(b_i - b_j) (q_i . k_j) u_j
//   S64 = e^b_63 S0 + sum_j e^(b_63 - b_j) k_j u_j'
// which is the recurrence of Yang et al. 2025 (Gated Delta Networks, eq. 10) unrolled.
#pragma once
#include "twinkle/kernels/attention/attention_products.h"
#include "twinkle/kernels/delta/delta_block.h"

namespace twinkle::kernels::TWINKLE_ISA {

// x . y of rows of `width`, which are zero up to whole vectors.
template <class A>
inline A dot(const A* x, const A* y, int64_t width) {
  Lanes<A> total{};
  for (int64_t i = 0; i < width; i += kLanes<A>) {
    total = fma(load<A>(x + i), load<A>(y + i), total);
  }
  return sum<A>(total);
}

template <class T, class A>
inline A unit_scale(const T* x, int64_t width) {
  Lanes<A> squares{};
  for (int64_t i = 0; i < width; i += kLanes<A>) {
    const auto v = load<A>(x + i, width - i);
    squares = fma(v, v, squares);
  }
  return 1 / static_cast<A>(__builtin_sqrt(sum<A>(squares) + static_cast<A>(1e-6)));
}

// A chunk's rows: keys, then queries, both of unit length, queries also over sqrt(key_dim).
template <class T, class A>
void unit_rows(const DeltaBlock<T>& p, int64_t row, int64_t count, A* rows) {
  const int64_t width = padded(p.key_dim);
  const A scale = 1 / static_cast<A>(__builtin_sqrt(static_cast<A>(p.key_dim)));
  for (int64_t i = 0; i < count; ++i) {
    const T *k = p.k + (row + i) * p.stride, *q = p.q + (row + i) * p.stride;
    widen_rows<A>(k, 0, 1, p.key_dim, unit_scale<T, A>(k, p.key_dim), rows + i * width, width);
    widen_rows<A>(q, 0, 1, p.key_dim, unit_scale<T, A>(q, p.key_dim) * scale,
                  rows + (count + i) * width, width);
  }
}

// weights[j] = e^(b_i - b_j) for j <= i, up to whole vectors.
template <class A>
inline void decay_weights(const double* b, int64_t i, A* weights) {
  constexpr int n = kLanes<A>;
  for (int64_t j = 0; j <= i; j += n) {
    alignas(kVectorBytes) A x[n];
    for (int l = 0; l < n; ++l) x[l] = static_cast<A>(b[i] - b[j + l]);
    store<A, A>(weights + j, exp(load<A>(x)));
  }
}

template <class A>
inline A exp_of(double x) {
  return exp(splat(static_cast<A>(x)))[0];
}

// The values that a row of one value head reads and writes.
template <class T, class A>
struct DeltaRow {
  int64_t index;             // in the chunk
  const A *keys, *queries;   // its products with the chunk's keys
  const A *s_key, *s_query;  // S0' k and S0' q; null: S0 is zero
  const T* v;
  A decay, beta;
  A* u;  // [kDeltaChunk][padded(value_dim)]
  double* b;
  A* error;  // [padded(value_dim)]: u / beta
  T* out;    // null: not wanted
};

// scratch: padded(value_dim) + kDeltaChunk.
template <class T, class A>
void delta_row(const DeltaRow<T, A>& r, int64_t value_dim, A* scratch) {
  constexpr int n = kLanes<A>;
  const int64_t i = r.index, width = padded(value_dim);
  A *weights = scratch, *t = scratch + kDeltaChunk;
  r.b[i] = (i > 0 ? r.b[i - 1] : 0.0) + static_cast<double>(r.decay);
  const A kept = exp_of<A>(r.b[i]);
  const auto weigh = [&](const A* products) {
    decay_weights(r.b, i, weights);
    for (int64_t j = 0; j <= i; j += n) {
      store<A, A>(weights + j, load<A>(weights + j) * load<A>(products + j));
    }
  };
  weigh(r.keys);
  product_rows<A, 1, Into::kZero, Left::kRowMajor>(weights, 0, r.u, width, t, 0, i, width);
  for (int64_t c = 0; c < width; c += n) {
    auto x = load<A>(r.v + c, value_dim > c ? value_dim - c : 0) - load<A>(t + c);
    if (r.s_key != nullptr) x = fma(splat(-kept), load<A>(r.s_key + c), x);
    store<A, A>(r.error + c, x);
    store<A, A>(r.u + i * width + c, x * splat(r.beta));
  }
  if (r.out == nullptr) return;
  for (int64_t c = 0; c < width; c += n) {
    store<A, A>(t + c, r.s_query ? load<A>(r.s_query + c) * splat(kept) : Lanes<A>{});
  }
  weigh(r.queries);
  product_rows<A, 1, Into::kSum, Left::kRowMajor>(weights, 0, r.u, width, t, 0, i + 1, width);
  for (int64_t c = 0; c < value_dim; c += n) {
    store<T, A>(r.out + c, load<A>(t + c), value_dim - c);
  }
}

// to = e^b_63 from + the chunk's rows; from null: zero; may be `to`. scratch: key_dim * kDeltaChunk
// + kDeltaChunk.
template <class T, class A>
void close_chunk(const DeltaBlock<T>& p, const A* k_columns, const A* u, const double* b,
                 const A* from, A* to, A* scratch) {
  const int64_t width = padded(p.value_dim);
  A *weights = scratch, *weighted = scratch + kDeltaChunk;
  decay_weights(b, kDeltaChunk - 1, weights);
  for (int64_t a = 0; a < p.key_dim * kDeltaChunk; a += kLanes<A>) {
    store<A, A>(weighted + a, load<A>(k_columns + a) * load<A>(weights + a % kDeltaChunk));
  }
  if (from == nullptr) {
    return product<A, Into::kZero, Left::kRowMajor>(p.key_dim, weighted, kDeltaChunk, u, width, to,
                                                    width, kDeltaChunk, width);
  }
  const auto kept = splat(exp_of<A>(b[kDeltaChunk - 1]));
  for (int64_t i = 0; i < p.key_dim * width; i += kLanes<A>) {
    store<A, A>(to + i, load<A>(from + i) * kept);
  }
  product<A, Into::kSum, Left::kRowMajor>(p.key_dim, weighted, kDeltaChunk, u, width, to, width,
                                          kDeltaChunk, width);
}

// A chunk's rows and their products, for all value heads of the key head.
template <class A>
struct DeltaChunk {
  int64_t row, begin, count;  // rows of the block; the first's place in the chunk
  A *rows, *products;         // [2 count][padded(key_dim)], [2 count][kDeltaChunk]
};

template <class T, class A>
void open_rows(const DeltaBlock<T>& p, const DeltaChunk<A>& chunk, A* k_columns) {
  const int64_t width = padded(p.key_dim), end = chunk.begin + chunk.count;
  unit_rows(p, chunk.row, chunk.count, chunk.rows);
  for (int64_t i = 0; i < chunk.count; ++i) {
    for (int64_t a = 0; a < p.key_dim; ++a) {
      k_columns[a * kDeltaChunk + chunk.begin + i] = chunk.rows[i * width + a];
    }
  }
  product<A, Into::kZero, Left::kRowMajor>(2 * chunk.count, chunk.rows, width, k_columns,
                                           kDeltaChunk, chunk.products, kDeltaChunk, p.key_dim,
                                           end);
}

template <class T, class A>
void delta_forward(const DeltaBlock<T>& p, A* scratch) {
  const int64_t dk = padded(p.key_dim), dv = padded(p.value_dim), size = p.key_dim * dv;
  A* rows = scratch;
  A* products = rows + 2 * kDeltaChunk * dk;
  A* seen = products + 2 * kDeltaChunk * kDeltaChunk;
  A* error = seen + 2 * kDeltaChunk * dv;
  A* more = error + dv;
  for (int64_t row = 0; row < p.count;) {
    const int64_t position = p.first + row, index = position / kDeltaChunk,
                  begin = position % kDeltaChunk;
    const int64_t left = p.count - row, room = kDeltaChunk - begin, n = left < room ? left : room;
    open_rows(p, DeltaChunk<A>{row, begin, n, rows, products}, p.k_columns);
    const bool closes = n == room && (p.kept == nullptr || left > room);
    for (int64_t h = 0; h < p.group; ++h) {
      const A* s = index == 0          ? nullptr
                   : p.kept != nullptr ? p.kept + (index - 1) * p.kept_stride + h * size
                                       : p.s + h * size;
      A* u = p.u + h * kDeltaChunk * dv;
      double* b = p.decays + h * kDeltaChunk;
      if (s != nullptr) {
        product<A, Into::kZero, Left::kRowMajor>(2 * n, rows, dk, s, dv, seen, dv, p.key_dim, dv);
      }
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = row + i;
        delta_row<T, A>({.index = begin + i,
                         .keys = products + i * kDeltaChunk,
                         .queries = products + (n + i) * kDeltaChunk,
                         .s_key = s != nullptr ? seen + i * dv : nullptr,
                         .s_query = s != nullptr ? seen + (n + i) * dv : nullptr,
                         .v = p.v + at * p.stride + h * p.value_dim,
                         .decay = p.decay[at * p.gate_stride + h],
                         .beta = p.beta[at * p.gate_stride + h],
                         .u = u,
                         .b = b,
                         .error = error,
                         .out = p.out + at * p.out_stride + h * p.value_dim},
                        p.value_dim, more);
      }
      if (!closes) continue;
      A* to = p.kept != nullptr ? p.kept + index * p.kept_stride + h * size : p.s + h * size;
      close_chunk(p, p.k_columns, u, b, s, to, more);
    }
    row += n;
  }
}

}  // namespace twinkle::kernels::TWINKLE_ISA
