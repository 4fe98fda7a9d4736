#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/kernels/linear/grouped.h"
#include "twinkle/kernels/linear/linear_bf16.h"
#include "twinkle/kernels/linear/linear_bf16_product.h"
#include "twinkle/kernels/linear/result.h"
#include "twinkle/kernels/linear/run_tiles.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

constexpr int64_t kPiecesPerThread = 8;
// Rows that reading a weight counts as: few rows take as long as that.
constexpr int64_t kWeightRows = 8;

bool is_matrix(const at::Tensor& w, const at::Tensor& x, int64_t outputs) {
  return w.dim() == 2 && w.is_cpu() && w.scalar_type() == x.scalar_type() &&
         (w.is_contiguous() || w.t().is_contiguous()) && w.size(0) == outputs &&
         w.size(1) == x.size(1);
}

int64_t outputs_of(const at::Tensor& x, std::span<const RowGroup> groups) {
  const bool narrow = x.scalar_type() == at::kBFloat16;
  require(x.dim() == 2 && x.is_cpu() && x.is_contiguous() && !groups.empty() &&
              (narrow || x.scalar_type() == at::kFloat),
          Code::kInvalid, "kernels: grouped_linear's x is ", x.scalar_type(), " ", x.sizes(),
          " in ", groups.size(),
          " groups, it must be contiguous float32 or bfloat16 [R, I] on the CPU, in one or more");
  const int64_t outputs = groups[0].weight.size(0);
  int64_t row = 0;
  for (const RowGroup& group : groups) {
    require(group.begin == row && group.end >= row && is_matrix(group.weight, x, outputs),
            Code::kInvalid, "kernels: grouped_linear's rows ", group.begin, " to ", group.end,
            " have a weight ", group.weight.scalar_type(), " ", group.weight.sizes(),
            "; the rows must begin at ", row, ", the weight must be ", x.scalar_type(), " [",
            outputs, ", ", x.size(1), "]");
    row = group.end;
  }
  require(row == x.size(0), Code::kInvalid, "kernels: grouped_linear's groups end at row ", row,
          ", x has ", x.size(0));
  return outputs;
}

template <class Product, class TileOf>
std::vector<OutputPiece> pieces_for_threads(const std::vector<Product>& products,
                                            const TileOf& tile_of) {
  std::vector<TiledProduct> tiled;
  for (const Product& p : products) tiled.push_back({p.rows, p.outputs, tile_of(p)});
  return pieces_of(tiled, at::get_num_threads());
}

// The order of linear_f32; T float, or bfloat16, whose x is widened.
template <class T>
void by_runs(const float* x, std::span<const RowGroup> groups, const at::Tensor& y,
             void (*loop)(const RunProduct<T>&, int64_t, int64_t, float*)) {
  std::vector<RunProduct<T>> products;
  int64_t scratch = 0;
  for (const RowGroup& group : groups) {
    if (group.begin == group.end) continue;
    const at::Tensor& w = group.weight;
    RunProduct<T> p{.x = x + group.begin * w.size(1),
                    .w = w.const_data_ptr<T>(),
                    .transposed = !w.is_contiguous(),
                    .y = y.mutable_data_ptr<T>() + group.begin * y.size(1),
                    .rows = group.end - group.begin,
                    .outputs = w.size(0),
                    .inputs = w.size(1)};
    if (!p.is_thin()) scratch = std::max(scratch, p.scratch_size());
    products.push_back(p);
  }
  const auto pieces = pieces_for_threads(
      products, [](const RunProduct<T>& p) { return p.is_thin() ? kThinTile : kWideTile; });
  for_each_task<float>({std::ssize(pieces), scratch}, [&](int64_t i, float* own) {
    const OutputPiece& piece = pieces[static_cast<size_t>(i)];
    const RunProduct<T>& p = products[piece.product];
    loop(p, piece.first, piece.last, p.is_thin() ? nullptr : own);
  });
}

// Packed rows, all in one, for the products whose loops want them.
at::Tensor pack(std::vector<Bf16Product>& products, const at::Tensor& x) {
  int64_t words = 0;
  for (const Bf16Product& p : products) words += avx512_packs(p) ? packed_words(p) : 0;
  if (words == 0) return {};
  const at::Tensor packed = at::empty({words}, x.options().dtype(at::kInt));
  auto* const first = reinterpret_cast<uint32_t*>(packed.mutable_data_ptr());
  uint32_t* to = first;
  for (Bf16Product& p : products) {
    if (!avx512_packs(p)) continue;
    p.packed = to;
    to += packed_words(p);
  }
  parallel_for(0, std::ssize(products), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Bf16Product& p = products[static_cast<size_t>(i)];
      if (p.packed) pack_rows(p, first + (p.packed - first));
    }
  });
  return packed;
}

void by_pairs(const at::Tensor& x, std::span<const RowGroup> groups, const at::Tensor& y) {
  std::vector<Bf16Product> products;
  for (const RowGroup& group : groups) {
    if (group.begin == group.end) continue;
    const at::Tensor& w = group.weight;
    const int64_t inputs = w.size(1), outputs = w.size(0);
    products.push_back(
        {.x = static_cast<const uint16_t*>(x.const_data_ptr()) + group.begin * inputs,
         .w = static_cast<const uint16_t*>(w.const_data_ptr()),
         .transposed = !w.is_contiguous(),
         .bias = nullptr,
         .y = static_cast<uint16_t*>(y.mutable_data_ptr()) + group.begin * outputs,
         .rows = group.end - group.begin,
         .outputs = outputs,
         .inputs = inputs,
         .x_stride = inputs});
  }
  const at::Tensor packed = pack(products, x);
  const auto pieces =
      pieces_for_threads(products, [](const Bf16Product& p) { return avx512_loop(p).tile; });
  for_each_task<float>({std::ssize(pieces)}, [&](int64_t i, float*) {
    const OutputPiece& piece = pieces[static_cast<size_t>(i)];
    const Bf16Product& p = products[piece.product];
    avx512_loop(p).run(p, piece.first, piece.last);
  });
}

// One product after the other.
void one_by_one(const at::Tensor& x, std::span<const RowGroup> groups, at::Tensor& y) {
  for (const RowGroup& group : groups) {
    const int64_t count = group.end - group.begin;
    if (count == 0) continue;
    y.narrow(0, group.begin, count)
        .copy_(linear_bf16(x.narrow(0, group.begin, count), group.weight));
  }
}

}  // namespace

// Pieces of about as much work each.
std::vector<OutputPiece> pieces_of(std::span<const TiledProduct> products, int64_t num_threads) {
  const auto work_of = [](const TiledProduct& p) { return (p.rows + kWeightRows) * p.outputs; };
  int64_t all = 0;
  for (const TiledProduct& p : products) all += work_of(p);
  const int64_t most = num_threads * kPiecesPerThread;
  std::vector<OutputPiece> out;
  for (size_t i = 0; i < products.size(); ++i) {
    const TiledProduct& p = products[i];
    const int64_t tiles = (p.outputs + p.tile - 1) / p.tile;
    const int64_t wanted = (work_of(p) * most + all - 1) / std::max<int64_t>(1, all);
    const int64_t step = (tiles + wanted - 1) / std::max<int64_t>(1, wanted) * p.tile;
    for (int64_t first = 0; first < p.outputs; first += step)
      out.push_back({i, first, std::min(p.outputs, first + step)});
  }
  return out;
}

at::Tensor grouped_linear(const at::Tensor& x, std::span<const RowGroup> groups) {
  const int64_t outputs = outputs_of(x, groups);
  at::Tensor y = result(x.size(0), outputs, x.options());
  if (y.numel() == 0) return y;
  if (x.size(1) == 0) return y.zero_();
  if (x.scalar_type() == at::kFloat) {
    by_runs(x.const_data_ptr<float>(), groups, y, best_simd().linear_f32);
  } else if (linear_bf16_best() == "runs") {
    const at::Tensor wide = x.to(at::kFloat);
    by_runs(wide.const_data_ptr<float>(), groups, y, best_simd().linear_bf16);
  } else if (linear_bf16_best() == "pairs" && x.size(1) % 2 == 0) {
    by_pairs(x, groups, y);
  } else {  // tiles need their own layout of x, an odd number of inputs a padded one
    one_by_one(x, groups, y);
  }
  return y;
}

}  // namespace twinkle::kernels
