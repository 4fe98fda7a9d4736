// Forward attention of a block of query rows, key tile by key tile with a running softmax (Dao et
// al. 2022, algorithm 1). Compiled once per instruction set (see simd.h). A row's bits depend on
// its own query and its keys in tile order, never on the block that it sits in: packed training,
// paged prefill and decode agree.
#pragma once
#include "twinkle/kernels/attention/attention_products.h"

namespace twinkle::kernels::TWINKLE_ISA {

// The columns of a tile that a query sees: [begin, end), empty if none.
struct Visible {
  int64_t begin = 0;
  int64_t end = 0;
};

inline Visible visible(int64_t position, int64_t window, int64_t tile) {
  const int64_t first = window > 0 && position >= window ? position - window + 1 : 0;
  const int64_t begin = first - tile * kKeyTile, end = position + 1 - tile * kKeyTile;
  const Visible range{begin < 0 ? 0 : begin, end > kKeyTile ? kKeyTile : end};
  return range.begin < range.end ? range : Visible{};
}

// Scores outside `range` become -inf, so that exp makes them exactly 0. `columns` is a multiple of
// the lanes.
template <class A>
inline void mask(A* scores, Visible range, int64_t columns) {
  for (int64_t i = 0; i < columns; ++i) {
    scores[i] = i >= range.begin && i < range.end ? scores[i] : -static_cast<A>(__builtin_inf());
  }
}

// `columns` is a multiple of the lanes. What no key gave comes out as anything: mask() follows.
template <class A>
inline void cap_scores(A* scores, int64_t columns, A cap) {
  const auto inverse = splat(1 / cap);
  for (int64_t i = 0; i < columns; i += kLanes<A>) {
    store<A, A>(scores + i, tanh(load<A>(scores + i) * inverse) * splat(cap));
  }
}

// A running softmax over up to kProductRows rows.
template <class A>
struct RowStates {
  A* top;   // [rows] largest score so far
  A* sums;  // [rows][16] lane by lane
  A* out;   // [rows][padded_dim], not yet divided
};

template <class A>
inline void softmax_row(A* scores, int64_t columns, A top, A* sums) {
  Lanes<A> total = load<A>(sums);
  for (int64_t i = 0; i < columns; i += kLanes<A>) {
    const auto p = exp(load<A>(scores + i) - splat(top));
    store<A, A>(scores + i, p);
    total += p;
  }
  store<A, A>(sums, total);
}

template <class A>
inline A largest_score(const A* scores, int64_t columns) {
  auto top = load<A>(scores);
  for (int64_t i = kLanes<A>; i < columns; i += kLanes<A>) {
    const auto x = load<A>(scores + i);
    top = x > top ? x : top;
  }
  return largest<A>(top);
}

template <class A>
inline void rescale(A* values, int64_t count, A factor) {
  for (int64_t i = 0; i < count; i += kLanes<A>) {
    store<A, A>(values + i, load<A>(values + i) * splat(factor));
  }
}

// One tile for up to kProductRows rows; kt is [head_dim][kKeyTile], v is [kKeyTile][padded_dim].
template <class A>
void attend(const AttentionShape& shape, int64_t rows, const A* q, const A* kt, const A* v,
            const Visible* ranges, RowStates<A> states) {
  const int64_t dim = shape.padded_dim();
  Visible all{kKeyTile, 0};
  for (int64_t r = 0; r < rows; ++r) {
    if (ranges[r].end == 0) continue;
    all.begin = ranges[r].begin < all.begin ? ranges[r].begin : all.begin;
    all.end = ranges[r].end > all.end ? ranges[r].end : all.end;
  }
  if (all.end == 0) return;
  alignas(64) A scores[kProductRows * kKeyTile];
  const int64_t columns = (all.end + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
  product<A, Into::kZero, Left::kRowMajor>(rows, q, dim, kt, kKeyTile, scores, kKeyTile,
                                           shape.head_dim, columns);
  for (int64_t r = 0; r < rows; ++r) {
    A* row = scores + r * kKeyTile;
    if (ranges[r].end == 0) {
      for (int64_t i = 0; i < columns; ++i) row[i] = 0;
      continue;
    }
    if (shape.softcap > 0) cap_scores(row, columns, static_cast<A>(shape.softcap));
    if (ranges[r].begin > 0 || ranges[r].end < columns) mask(row, ranges[r], columns);
    const A tile_top = largest_score(row, columns), old_top = states.top[r];
    const A top = tile_top > old_top ? tile_top : old_top;
    if (top != old_top) {
      states.top[r] = top;
      const A factor = exp(splat(old_top - top))[0];
      rescale(states.sums + r * 16, kLanes<A>, factor);
      rescale(states.out + r * dim, dim, factor);
    }
    softmax_row(row, columns, top, states.sums + r * 16);
  }
  product<A, Into::kSum, Left::kRowMajor>(rows, scores + all.begin, kKeyTile, v + all.begin * dim,
                                          dim, states.out, dim, all.end - all.begin, dim);
}

// Converts tile `tile` to kt [head_dim][kKeyTile] and v [kKeyTile][padded_dim]; of a page, the
// first `used` keys.
template <class T, class A>
void widen_tile(const AttentionShape& shape, const KeyTiles<T>& keys, int64_t tile, int64_t used,
                A* kt, A* v) {
  const int64_t width = shape.head_dim;
  if (keys.pages != nullptr) {
    const int64_t offset = keys.pages[tile] * keys.stride;
    const int64_t columns = (used + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
    if (keys.k == nullptr) widen_transposed(keys.v + offset, width, used, width, kt);
    for (int64_t i = 0; keys.k != nullptr && i < width; ++i) {
      for (int64_t j = 0; j < columns; j += kLanes<A>) {
        store<A, A>(kt + i * kKeyTile + j, load<A>(keys.k + offset + i * kKeyTile + j));
      }
    }
    return widen_rows<A>(keys.v + offset, width, used, width, A{1}, v, shape.padded_dim());
  }
  const int64_t offset = tile * kKeyTile * keys.stride;
  widen_transposed(keys.k + offset, keys.stride, used, width, kt);
  widen_rows<A>(keys.v + offset, keys.stride, used, width, A{1}, v, shape.padded_dim());
}

// One more score in a row's sum, of a key whose value is 0. Returns the new sum.
template <class A>
inline A add_sink(A sink, A total, int64_t dim, A* top, A* out) {
  const A old_top = *top;
  *top = sink > old_top ? sink : old_top;
  const A factor = exp(splat(old_top - *top))[0];
  rescale(out, dim, factor);
  return total * factor + exp(splat(sink - *top))[0];
}

template <class T, class A>
void finish_rows(const AttentionBlock<T>& block, int64_t rows, const RowStates<A>& states) {
  const auto& shape = block.shape;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t token = r / shape.group, head = r % shape.group;
    A total = sum<A>(load<A>(states.sums + r * 16));
    if (block.sinks != nullptr) {
      total = add_sink(block.sinks[head], total, shape.padded_dim(), states.top + r,
                       states.out + r * shape.padded_dim());
    }
    T* out = block.out + token * block.q_stride + head * shape.head_dim;
    const A* row = states.out + r * shape.padded_dim();
    for (int64_t i = 0; i < shape.head_dim; i += kLanes<A>) {
      store<T, A>(out + i, load<A>(row + i) / splat(total), shape.head_dim - i);
    }
    if (block.lse == nullptr) continue;
    block.lse[token * block.lse_stride + head] =
        states.top[r] + static_cast<A>(__builtin_log(total));
  }
}

template <class T, class A>
void attention_forward(const AttentionBlock<T>& block, A* scratch) {
  const auto& shape = block.shape;
  const int64_t rows = block.num_positions * shape.group, dim = shape.padded_dim();
  A* q = scratch;
  RowStates<A> states{
      .top = q + 2 * rows * dim + 16 * rows, .sums = q + 2 * rows * dim, .out = q + rows * dim};
  A* kt = q + (2 * dim + 32) * rows;
  A* v = kt + kKeyTile * dim;
  int64_t first = block.positions[0], last = first;
  for (int64_t t = 0; t < block.num_positions; ++t) {
    widen_rows<A>(block.q + t * block.q_stride, shape.head_dim, shape.group, shape.head_dim,
                  static_cast<A>(shape.scale), q + t * shape.group * dim, dim);
    first = block.positions[t] < first ? block.positions[t] : first;
    last = block.positions[t] > last ? block.positions[t] : last;
  }
  for (int64_t i = 0; i < rows * dim; ++i) states.out[i] = 0;
  for (int64_t i = 0; i < rows * 16; ++i) states.sums[i] = 0;
  for (int64_t i = 0; i < rows; ++i) states.top[i] = -static_cast<A>(__builtin_inf());
  const int64_t first_key =
      shape.window > 0 && first >= shape.window ? first - shape.window + 1 : 0;
  for (int64_t tile = first_key / kKeyTile; tile <= last / kKeyTile; ++tile) {
    const int64_t left = last + 1 - tile * kKeyTile;
    widen_tile(shape, block.keys, tile, left < kKeyTile ? left : kKeyTile, kt, v);
    for (int64_t r = 0; r < rows; r += kProductRows) {
      const int64_t count = rows - r < kProductRows ? rows - r : kProductRows;
      Visible ranges[kProductRows];
      for (int64_t i = 0; i < count; ++i) {
        ranges[i] = visible(block.positions[(r + i) / shape.group], shape.window, tile);
      }
      attend(shape, count, q + r * dim, kt, v, ranges,
             {states.top + r, states.sums + r * 16, states.out + r * dim});
    }
  }
  finish_rows(block, rows, states);
}

}  // namespace twinkle::kernels::TWINKLE_ISA
