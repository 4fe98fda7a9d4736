// The backward pass of the gated delta rule: chunk by chunk from the last, each chunk's rows
// computed again from the state that the forward kept. Compiled once per instruction set (see
// simd.h). With G the gradient of the state behind the chunk, w_i = beta_i du_i, b the last b_i of
// the chunk, and (i, j) for j <= i:
//   du_j = sum_{i>=j} e^(b_i - b_j) (q_i . k_j) do_i - sum_{i>j} e^(b_i - b_j) (k_i . k_j) w_i
//          + e^(b - b_j) G' k_j
//   dv_i = w_i, dbeta_i = du_i . u_i / beta_i
//   G of the chunk before = e^b G + sum_i e^b_i (q_i do_i' - k_i w_i')
// and what follows for q, k and the decays.
#pragma once
#include "twinkle/kernels/delta/delta_loops.h"

namespace twinkle::kernels::TWINKLE_ISA {

// to[i][r] = from[r][i] for i < width, zero for r >= rows; both padded to whole vectors, `to` to
// ldt columns.
template <class A>
void transposed(const A* from, int64_t ld, int64_t rows, int64_t width, A* to, int64_t ldt) {
  constexpr int n = kLanes<A>;
  for (int64_t r = 0; r < ldt; r += n) {
    for (int64_t i = 0; i < width; i += n) {
      Lanes<A> x[n];
#pragma GCC unroll 16
      for (int j = 0; j < n; ++j)
        x[j] = r + j < rows ? load<A>(from + (r + j) * ld + i) : Lanes<A>{};
      Transposer<A>::run(x);
#pragma GCC unroll 16
      for (int j = 0; j < n; ++j) {
        if (i + j < width) store<A, A>(to + (i + j) * ldt + r, x[j]);
      }
    }
  }
}

// The gradient of unit_rows: y = c x / sqrt(x . x + eps).
template <class T, class A>
void unit_backward(const T* x, const A* dy, int64_t width, A c, T* dx) {
  const A s = unit_scale<T, A>(x, width);
  Lanes<A> along{};
  for (int64_t i = 0; i < width; i += kLanes<A>) {
    along = fma(load<A>(x + i, width - i), load<A>(dy + i), along);
  }
  const auto scale = splat(c * s), slope = splat(-s * s * sum<A>(along));
  for (int64_t i = 0; i < width; i += kLanes<A>) {
    const auto v = load<A>(x + i, width - i);
    store<T, A>(dx + i, scale * fma(slope, v, load<A>(dy + i)), width - i);
  }
}

// Memory of the backward pass of a sequence and key head; see delta_grad_scratch.
template <class A>
struct DeltaGradScratch {
  A *rows, *products, *seen, *u, *errors, *slopes, *scaled, *du, *pairs, *weights, *columns, *drows,
      *scaled_rows, *flat, *square, *grad_s, *k_columns, *more;
  double b[kDeltaChunk], db[kDeltaChunk];

  DeltaGradScratch(int64_t key_dim, int64_t dk, int64_t dv, int64_t group, A* from) {
    const auto take = [&](int64_t count) { return from += count, from - count; };
    const int64_t both = 2 * kDeltaChunk;
    rows = take(both * dk), products = take(both * kDeltaChunk), seen = take(both * dv);
    u = take(kDeltaChunk * dv), errors = take(kDeltaChunk * dv), du = take(kDeltaChunk * dv);
    slopes = take(both * dv), scaled = take(both * dv);  // rows w, then do; the same times e^b_i
    drows = take(both * dk), scaled_rows = take(both * dk);
    pairs = take(both * kDeltaChunk), weights = take(kDeltaChunk * kDeltaChunk);
    columns = take(dv * kDeltaChunk);
    flat = take(both * kDeltaChunk);
    square = take(dv * dk);
    grad_s = take(group * key_dim * dv);
    k_columns = take(key_dim * kDeltaChunk);
    more = take(dv + kDeltaChunk + key_dim * kDeltaChunk);
  }
};

// One value head of one chunk.
template <class T, class A>
struct DeltaGradChunk {
  const DeltaGradBlock<T>& p;
  DeltaChunk<A> chunk;
  int64_t head, dk, dv;
  const A* s;  // S0; null: zero
  A* grad_s;   // gradient of the state after the chunk, on return of S0
  bool ends;   // nothing is behind the chunk
  DeltaGradScratch<A>& m;

  A gate(const A* gates, int64_t i) const {
    return gates[(chunk.row + i) * p.forward.gate_stride + head];
  }

  // u, e^(b_i - b_j), and the pairs' factors in the forward.
  void recompute() const {
    const DeltaBlock<T>& f = p.forward;
    const int64_t n = chunk.count;
    if (s != nullptr) {
      product<A, Into::kZero, Left::kRowMajor>(2 * n, chunk.rows, dk, s, dv, m.seen, dv, f.key_dim,
                                               dv);
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = chunk.row + i;
      delta_row<T, A>({.index = i,
                       .keys = chunk.products + i * kDeltaChunk,
                       .queries = nullptr,
                       .s_key = s != nullptr ? m.seen + i * dv : nullptr,
                       .s_query = nullptr,
                       .v = f.v + at * f.stride + head * f.value_dim,
                       .decay = gate(f.decay, i),
                       .beta = gate(f.beta, i),
                       .u = m.u,
                       .b = m.b,
                       .error = m.errors + i * dv,
                       .out = nullptr},
                      f.value_dim, m.more);
      A* weights = m.weights + i * kDeltaChunk;
      for (int64_t j = 0; j < kDeltaChunk; ++j) weights[j] = 0;
      decay_weights(m.b, i, weights);
      for (int64_t j = 0; j < kDeltaChunk; ++j) {
        if (j > i) weights[j] = 0;
        const A x = weights[j] * (j <= i ? chunk.products[i * kDeltaChunk + j] : 0);
        m.pairs[i * kDeltaChunk + j] = j < i ? x : 0;
        m.pairs[(n + i) * kDeltaChunk + j] =
            j <= i ? weights[j] * chunk.products[(n + i) * kDeltaChunk + j] : 0;
      }
      widen_rows<A>(p.grad + at * f.out_stride + head * f.value_dim, 0, 1, f.value_dim, A{1},
                    m.slopes + (n + i) * dv, dv);
    }
  }

  A behind(int64_t i) const { return exp_of<A>(m.b[chunk.count - 1] - m.b[i]); }

  // du, w and with it dv and dbeta: from the last row, because u_i reads those before it.
  void solve() const {
    const DeltaBlock<T>& f = p.forward;
    const int64_t n = chunk.count;
    product<A, Into::kZero, Left::kColumnMajor>(n, m.pairs + n * kDeltaChunk, kDeltaChunk,
                                                m.slopes + n * dv, dv, m.du, dv, n, dv);
    if (!ends) {
      for (int64_t i = 0; i < n; ++i) {
        widen_rows<A>(chunk.rows + i * dk, 0, 1, dk, behind(i), m.scaled_rows + i * dk, dk);
      }
      product<A, Into::kSum, Left::kRowMajor>(n, m.scaled_rows, dk, grad_s, dv, m.du, dv, f.key_dim,
                                              dv);
    }
    for (int64_t i = n - 1; i >= 0; --i) {
      A *du = m.du + i * dv, *w = m.slopes + i * dv;
      product_rows<A, 1, Into::kZero, Left::kColumnMajor>(
          m.pairs + (i + 1) * kDeltaChunk + i, kDeltaChunk, w + dv, dv, m.more, 0, n - 1 - i, dv);
      const auto beta = splat(gate(f.beta, i));
      const int64_t at = chunk.row + i;
      T* to = p.dv + at * f.stride + head * f.value_dim;
      for (int64_t c = 0; c < dv; c += kLanes<A>) {
        const auto x = load<A>(du + c) - load<A>(m.more + c);
        store<A, A>(du + c, x);
        store<A, A>(w + c, x * beta);
        if (c < f.value_dim) store<T, A>(to + c, x * beta, f.value_dim - c);
      }
      p.dbeta[at * f.gate_stride + head] = dot(du, m.errors + i * dv, dv);
    }
  }

  // The pairs' contribution to the rows' gradients and to the decays'.
  void pairs() const {
    const int64_t n = chunk.count;
    transposed(m.u, dv, n, p.forward.value_dim, m.columns, kDeltaChunk);
    product<A, Into::kZero, Left::kRowMajor>(2 * n, m.slopes, dv, m.columns, kDeltaChunk, m.flat,
                                             kDeltaChunk, p.forward.value_dim, kDeltaChunk);
    for (int64_t i = 0; i < n; ++i) {
      A *key = m.flat + i * kDeltaChunk, *query = m.flat + (n + i) * kDeltaChunk;
      for (int64_t j = 0; j < kDeltaChunk; ++j) {
        const A weight = m.weights[i * kDeltaChunk + j];
        key[j] = j < i ? -weight * key[j] : 0;
        query[j] = j <= i ? weight * query[j] : 0;
        if (j >= i) continue;
        const double x =
            static_cast<double>(key[j]) * static_cast<double>(chunk.products[i * kDeltaChunk + j]) +
            static_cast<double>(query[j]) *
                static_cast<double>(chunk.products[(n + i) * kDeltaChunk + j]);
        m.db[i] += x;
        m.db[j] -= x;
      }
    }
    product<A, Into::kAdded, Left::kRowMajor>(2 * n, m.flat, kDeltaChunk, chunk.rows, dk, m.drows,
                                              dk, n, dk);
    product<A, Into::kAdded, Left::kColumnMajor>(n, m.flat, kDeltaChunk, chunk.rows, dk, m.drows,
                                                 dk, 2 * n, dk);
  }

  // The contribution of the state after the chunk, through the chunk's own rows and through S0.
  void from_behind() const {
    if (ends) return;
    const DeltaBlock<T>& f = p.forward;
    const int64_t n = chunk.count;
    transposed(grad_s, dv, f.key_dim, f.value_dim, m.square, dk);
    for (int64_t i = 0; i < n; ++i) {
      widen_rows<A>(m.u + i * dv, 0, 1, dv, behind(i), m.scaled + i * dv, dv);
    }
    product<A, Into::kZero, Left::kRowMajor>(n, m.scaled, dv, m.square, dk, m.scaled_rows, dk,
                                             f.value_dim, dk);
    for (int64_t i = 0; i < n; ++i) {
      const A* row = m.scaled_rows + i * dk;
      const double x = dot(row, chunk.rows + i * dk, dk);
      m.db[i] -= x;
      m.db[n - 1] += x;
      A* to = m.drows + i * dk;
      for (int64_t c = 0; c < dk; c += kLanes<A>) {
        store<A, A>(to + c, load<A>(to + c) + load<A>(row + c));
      }
    }
    if (s == nullptr) return;
    double kept = 0;
    for (int64_t a = 0; a < f.key_dim; ++a) kept += dot(grad_s + a * dv, s + a * dv, dv);
    m.db[n - 1] += kept * static_cast<double>(exp_of<A>(m.b[n - 1]));
  }

  // The contribution of reading S0, and the gradient of S0.
  void to_before() const {
    if (s == nullptr) return;
    const DeltaBlock<T>& f = p.forward;
    const int64_t n = chunk.count;
    for (int64_t i = 0; i < n; ++i) {
      const A kept = exp_of<A>(m.b[i]);
      widen_rows<A>(m.slopes + i * dv, 0, 1, dv, -kept, m.scaled + i * dv, dv);
      widen_rows<A>(m.slopes + (n + i) * dv, 0, 1, dv, kept, m.scaled + (n + i) * dv, dv);
      m.db[i] += static_cast<double>(dot(m.scaled + i * dv, m.seen + i * dv, dv)) +
                 static_cast<double>(dot(m.scaled + (n + i) * dv, m.seen + (n + i) * dv, dv));
    }
    transposed(s, dv, f.key_dim, f.value_dim, m.square, dk);
    product<A, Into::kAdded, Left::kRowMajor>(2 * n, m.scaled, dv, m.square, dk, m.drows, dk,
                                              f.value_dim, dk);
    const A kept = ends ? A{0} : exp_of<A>(m.b[n - 1]);
    for (int64_t i = 0; i < f.key_dim * dv; i += kLanes<A>) {
      store<A, A>(grad_s + i, ends ? Lanes<A>{} : load<A>(grad_s + i) * splat(kept));
    }
    product<A, Into::kSum, Left::kColumnMajor>(f.key_dim, chunk.rows, dk, m.scaled, dv, grad_s, dv,
                                               2 * n, dv);
  }

  void run() const {
    for (double& x : m.db) x = 0;
    recompute();
    solve();
    pairs();
    from_behind();
    to_before();
    double later = 0;
    for (int64_t i = chunk.count - 1; i >= 0; --i) {
      later += m.db[i];
      p.ddecay[(chunk.row + i) * p.forward.gate_stride + head] = static_cast<A>(later);
    }
  }
};

template <class T, class A>
void delta_backward(const DeltaGradBlock<T>& p, A* scratch) {
  const DeltaBlock<T>& f = p.forward;
  const int64_t dk = padded(f.key_dim), dv = padded(f.value_dim), size = f.key_dim * dv;
  DeltaGradScratch<A> m(f.key_dim, dk, dv, f.group, scratch);
  const A scale = 1 / static_cast<A>(__builtin_sqrt(static_cast<A>(f.key_dim)));
  const int64_t last = (f.count - 1) / kDeltaChunk;
  for (int64_t index = last; index >= 0; --index) {
    const int64_t row = index * kDeltaChunk, left = f.count - row;
    const int64_t n = left < kDeltaChunk ? left : kDeltaChunk;
    const DeltaChunk<A> chunk{row, 0, n, m.rows, m.products};
    open_rows(f, chunk, m.k_columns);
    for (int64_t i = 0; i < 2 * n * dk; ++i) m.drows[i] = 0;
    for (int64_t h = 0; h < f.group; ++h) {
      const A* s = index > 0 ? f.kept + (index - 1) * f.kept_stride + h * size : nullptr;
      DeltaGradChunk<T, A>{p, chunk, h, dk, dv, s, m.grad_s + h * size, index == last, m}.run();
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = (row + i) * f.stride;
      unit_backward(f.k + at, m.drows + i * dk, f.key_dim, A{1}, p.dk + at);
      unit_backward(f.q + at, m.drows + (n + i) * dk, f.key_dim, scale, p.dq + at);
    }
  }
}

}  // namespace twinkle::kernels::TWINKLE_ISA
