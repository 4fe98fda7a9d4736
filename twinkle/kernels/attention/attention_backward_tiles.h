// Backward attention of one sequence and key head, query block by query block, the probabilities
// recomputed from the saved log-sum-exp (Dao et al. 2022, algorithm 4). Compiled once per
// instruction set (see simd.h). Sums over queries run in the sequence's own order, so the bits
// depend on that sequence alone.
#pragma once
#include "twinkle/kernels/attention/attention_tiles.h"

namespace twinkle::kernels::TWINKLE_ISA {

// One block of query rows, widened: [rows][padded_dim] each.
template <class A>
struct GradRows {
  int64_t first = 0;  // position of the first row
  int64_t rows = 0;
  A* q;      // scaled
  A* grad;   // gradient of the output
  A* dq;     // gradient of the scaled q
  A* delta;  // [rows] sum of grad * out (same paper, equation 4)
  A* lse;    // [rows]
  A* p;      // [rows][kKeyTile] probabilities
  A* ds;     // [rows][kKeyTile] gradient of the scores
};

template <class A>
struct GradTile {
  A* kt;  // [head_dim][kKeyTile]
  A* vt;  // the same
  A* k;   // [kKeyTile][padded_dim]
};

// In one row: scores, masked, become probabilities, and the probabilities' gradients the scores'
// before they were capped.
template <bool kCapped, class A>
inline void grad_row(A* p, A* ds, int64_t columns, A lse, A delta, A cap) {
  for (int64_t j = 0; j < columns; j += kLanes<A>) {
    const auto score = load<A>(p + j);
    const auto probability = exp(score - splat(lse));
    store<A, A>(p + j, probability);
    auto slope = probability * (load<A>(ds + j) - splat(delta));
    if constexpr (kCapped) {
      const auto t = score * splat(1 / cap);
      slope = probability > 0 ? slope * (A{1} - t * t) : Lanes<A>{};  // a masked score is -inf
    }
    store<A, A>(ds + j, slope);
  }
}

// Fills p and ds for rows [r, r + count), and zeros where nothing is visible.
template <class A>
void grad_scores(const AttentionShape& shape, const GradRows<A>& x, const GradTile<A>& tile,
                 int64_t tile_index, int64_t r, int64_t count, int64_t columns) {
  const int64_t dim = shape.padded_dim();
  A* p = x.p + r * kKeyTile;
  A* ds = x.ds + r * kKeyTile;
  product<A, Into::kZero, Left::kRowMajor>(count, x.q + r * dim, dim, tile.kt, kKeyTile, p,
                                           kKeyTile, shape.head_dim, columns);
  product<A, Into::kZero, Left::kRowMajor>(count, x.grad + r * dim, dim, tile.vt, kKeyTile, ds,
                                           kKeyTile, shape.head_dim, columns);
  for (int64_t i = r; i < r + count; ++i, p += kKeyTile, ds += kKeyTile) {
    const A cap = static_cast<A>(shape.softcap);
    if (cap > 0) cap_scores(p, columns, cap);
    mask(p, visible(x.first + i / shape.group, shape.window, tile_index), columns);
    if (cap > 0) {
      grad_row<true>(p, ds, columns, x.lse[i], x.delta[i], cap);
    } else {
      grad_row<false>(p, ds, columns, x.lse[i], x.delta[i], cap);
    }
  }
}

template <class T, class A>
void load_rows(const AttentionGradBlock<T>& block, int64_t first, int64_t positions,
               GradRows<A>* x) {
  const auto& shape = block.shape;
  const int64_t dim = shape.padded_dim(), width = shape.head_dim;
  x->first = first, x->rows = positions * shape.group;
  for (int64_t t = 0; t < positions; ++t) {
    const int64_t offset = (first + t) * block.q_stride, row = t * shape.group;
    widen_rows<A>(block.q + offset, width, shape.group, width, static_cast<A>(shape.scale),
                  x->q + row * dim, dim);
    widen_rows<A>(block.grad_out + offset, width, shape.group, width, A{1}, x->grad + row * dim,
                  dim);
    for (int64_t h = 0; h < shape.group; ++h) {
      Lanes<A> total{};
      for (int64_t i = 0; i < width; i += kLanes<A>) {
        total = fma(load<A>(block.out + offset + h * width + i, width - i),
                    load<A>(x->grad + (row + h) * dim + i), total);
      }
      x->delta[row + h] = sum<A>(total);
      x->lse[row + h] = block.lse[(first + t) * block.lse_stride + h];
    }
  }
  for (int64_t i = 0; i < x->rows * dim; ++i) x->dq[i] = 0;
}

// One tile against the rows of the block: adds to dq, and to dk and dv [kKeyTile][padded_dim].
template <class A>
void grad_tile(const AttentionShape& shape, const GradRows<A>& x, const GradTile<A>& tile,
               int64_t index, int64_t used, A* dk, A* dv) {
  const int64_t dim = shape.padded_dim(), start = index * kKeyTile;
  // Rows before the tile see nothing of it, nor do those whose window has left it.
  const int64_t after = shape.window > 0 ? start + used - 1 + shape.window - x.first : x.rows;
  const int64_t begin = start > x.first ? (start - x.first) * shape.group : 0;
  const int64_t end = after * shape.group < x.rows ? after * shape.group : x.rows;
  if (begin >= end) return;
  const int64_t columns = (used + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
  for (int64_t r = begin; r < end; r += kProductRows) {
    const int64_t count = end - r < kProductRows ? end - r : kProductRows;
    grad_scores(shape, x, tile, index, r, count, columns);
  }
  const A* p = x.p + begin * kKeyTile;
  const A* ds = x.ds + begin * kKeyTile;
  product<A, Into::kSum, Left::kColumnMajor>(used, p, kKeyTile, x.grad + begin * dim, dim, dv, dim,
                                             end - begin, dim);
  product<A, Into::kSum, Left::kColumnMajor>(used, ds, kKeyTile, x.q + begin * dim, dim, dk, dim,
                                             end - begin, dim);
  product<A, Into::kSum, Left::kRowMajor>(end - begin, ds, kKeyTile, tile.k, dim,
                                          x.dq + begin * dim, dim, used, dim);
}

template <class T, class A>
void store_rows(const A* from, int64_t rows, int64_t dim, int64_t width, A factor, T* to,
                int64_t stride) {
  for (int64_t r = 0; r < rows; ++r, from += dim, to += stride) {
    for (int64_t i = 0; i < width; i += kLanes<A>) {
      store<T, A>(to + i, load<A>(from + i) * splat(factor), width - i);
    }
  }
}

template <class T, class A>
void attention_backward(const AttentionGradBlock<T>& block, A* scratch) {
  const auto& shape = block.shape;
  const auto& keys = block.keys;
  const int64_t dim = shape.padded_dim(), width = shape.head_dim, num_keys = keys.num_keys;
  const int64_t step = block_positions(shape.group), rows = step * shape.group;
  const auto take = [&scratch](int64_t count) { return (scratch += count) - count; };
  A* dk = take(num_keys * dim);
  A* dv = take(num_keys * dim);
  const GradTile<A> tile{take(kKeyTile * dim), take(kKeyTile * dim), take(kKeyTile * dim)};
  GradRows<A> x{.q = take(rows * dim),
                .grad = take(rows * dim),
                .dq = take(rows * dim),
                .delta = take(16 * rows),
                .lse = take(16 * rows),
                .p = take(rows * kKeyTile),
                .ds = take(rows * kKeyTile)};
  for (int64_t i = 0; i < num_keys * dim; ++i) dk[i] = dv[i] = 0;
  for (int64_t first = 0; first < num_keys; first += step) {
    const int64_t positions = num_keys - first < step ? num_keys - first : step;
    load_rows(block, first, positions, &x);
    const int64_t last = first + positions - 1;
    const int64_t key = shape.window > 0 && first >= shape.window ? first - shape.window + 1 : 0;
    for (int64_t i = key / kKeyTile; i <= last / kKeyTile; ++i) {
      const int64_t start = i * kKeyTile, left = last + 1 - start;
      const int64_t used = left < kKeyTile ? left : kKeyTile;
      widen_transposed(keys.k + start * keys.stride, keys.stride, used, width, tile.kt);
      widen_transposed(keys.v + start * keys.stride, keys.stride, used, width, tile.vt);
      widen_rows<A>(keys.k + start * keys.stride, keys.stride, used, width, A{1}, tile.k, dim);
      grad_tile(shape, x, tile, i, used, dk + start * dim, dv + start * dim);
    }
    if (block.dq != nullptr) {
      for (int64_t t = 0; t < positions; ++t) {
        store_rows(x.dq + t * shape.group * dim, shape.group, dim, width,
                   static_cast<A>(shape.scale), block.dq + (first + t) * block.q_stride, width);
      }
    }
  }
  if (block.dk != nullptr) store_rows(dk, num_keys, dim, width, A{1}, block.dk, keys.stride);
  if (block.dv != nullptr) store_rows(dv, num_keys, dim, width, A{1}, block.dv, keys.stride);
}

}  // namespace twinkle::kernels::TWINKLE_ISA
