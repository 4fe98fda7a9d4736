#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "twinkle/kernels/attention/attention.h"
#include "twinkle/kernels/attention/attention_sinks.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/simd/dispatch.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

struct Rows {
  at::Tensor tables;  // [S, most pages] int32, contiguous
  std::vector<int64_t> sequences;
  std::vector<int64_t> positions;

  int64_t size() const { return static_cast<int64_t>(positions.size()); }
  const int32_t* table(int64_t row) const {
    return tables.const_data_ptr<int32_t>() + sequences[row] * tables.size(1);
  }
};

std::vector<int64_t> to_vector(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kCPU, at::kLong).contiguous();
  const int64_t* first = wide.const_data_ptr<int64_t>();
  return {first, first + wide.numel()};
}

void check_pages(const PagedKeys& pages, const at::Tensor& x, const char* name) {
  const at::Tensor keys = pages.k.defined() ? pages.k : pages.v.transpose(-2, -1);
  require(keys.dim() == 4 && pages.v.dim() == 4 && keys.size(3) == kKeyTile &&
              pages.v.size(2) == kKeyTile && keys.size(0) == pages.v.size(0) &&
              keys.size(1) == pages.v.size(1) && keys.size(2) == pages.v.size(3) &&
              (!pages.k.defined() || keys.is_contiguous()) && pages.v.is_contiguous() &&
              keys.scalar_type() == pages.v.scalar_type(),
          Code::kInvalid, "kernels: pages are ", keys.sizes(), " and ", pages.v.sizes(),
          ", they must be as make_pages makes them");
  require(x.dim() == 3 && x.size(2) == keys.size(2) && x.size(1) % keys.size(1) == 0 &&
              x.scalar_type() == keys.scalar_type(),
          Code::kInvalid, "kernels: ", name, " is ", x.scalar_type(), " ", x.sizes(),
          ", which does not fit pages of ", keys.scalar_type(), " ", keys.sizes());
}

// The rows as plain numbers, every page that they need (from the window's first on) inside the
// cache.
Rows check_rows(const PagedRows& rows, int64_t num_rows, int64_t num_pages, int64_t window) {
  require(rows.block_tables.dim() == 2 && rows.block_tables.scalar_type() == at::kInt,
          Code::kInvalid, "kernels: block_tables are ", rows.block_tables.scalar_type(), " ",
          rows.block_tables.sizes(), ", they must be int32 [sequences, pages]");
  Rows out{rows.block_tables.cpu().contiguous(), to_vector(rows.sequences),
           to_vector(rows.positions)};
  require(out.size() == num_rows && rows.sequences.numel() == num_rows, Code::kInvalid,
          "kernels: there are ", rows.sequences.numel(), " sequences and ", out.size(),
          " positions for ", num_rows, " rows, there must be one each");
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t sequence = out.sequences[r], position = out.positions[r];
    require(sequence >= 0 && sequence < out.tables.size(0) && position >= 0 &&
                position / kKeyTile < out.tables.size(1),
            Code::kInvalid, "kernels: row ", r, " is position ", position, " of sequence ",
            sequence, ", beyond the block_tables of ", out.tables.sizes());
    const int64_t first = window > 0 ? std::max<int64_t>(0, position - window + 1) : 0;
    for (int64_t i = first / kKeyTile; i <= position / kKeyTile; ++i) {
      const int64_t page = out.table(r)[i];
      require(page >= 0 && page < num_pages, Code::kInvalid, "kernels: page ", i, " of sequence ",
              sequence, " is ", page, ", the cache has ", num_pages);
    }
  }
  return out;
}

}  // namespace

PagedKeys make_pages(int64_t num_pages, int64_t num_key_heads, int64_t head_dim,
                     at::ScalarType type) {
  return {at::zeros({num_pages, num_key_heads, head_dim, kKeyTile}, type),
          at::zeros({num_pages, num_key_heads, kKeyTile, head_dim}, type)};
}

void write_pages(PagedKeys& pages, const at::Tensor& k, const at::Tensor& v,
                 const PagedRows& rows) {
  check_pages(pages, k, "k");
  require(k.size(1) == pages.v.size(1), Code::kInvalid, "kernels: k has ", k.size(1),
          " heads, the pages have ", pages.v.size(1));
  require_like(v, "v", k, "k");
  if (cuda::takes(k)) {
    if (!cuda::takes(rows.positions)) check_rows(rows, k.size(0), pages.v.size(0), 1);
    return cuda::write_pages(pages, k, v, rows);
  }
  const Rows at = check_rows(rows, k.size(0), pages.v.size(0), 1);
  const at::Tensor kc = k.contiguous(), vc = v.contiguous();
  with_type(k, "k", [&]<class T>(T) {
    const int64_t heads = k.size(1), dim = k.size(2), row_size = heads * dim;
    T* k_pages = pages.k.defined() ? pages.k.mutable_data_ptr<T>() : nullptr;
    T* v_pages = pages.v.mutable_data_ptr<T>();
    parallel_for(0, at.size(), row_grain(row_size), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t page = at.table(r)[at.positions[r] / kKeyTile];
        const int64_t slot = at.positions[r] % kKeyTile;
        const T* from_k = kc.const_data_ptr<T>() + r * row_size;
        const T* from_v = vc.const_data_ptr<T>() + r * row_size;
        for (int64_t h = 0; h < heads; ++h) {
          const int64_t head = (page * heads + h) * dim * kKeyTile;
          if (k_pages) {
            for (int64_t i = 0; i < dim; ++i) k_pages[head + i * kKeyTile + slot] = *from_k++;
          }
          std::copy_n(from_v + h * dim, dim, v_pages + head + slot * dim);
        }
      }
    });
  });
}

at::Tensor attention_paged(const at::Tensor& q, const PagedKeys& pages, const PagedRows& rows,
                           const AttentionOptions& options, const Simd& simd) {
  check_pages(pages, q, "q");
  require(options.window >= 0, Code::kInvalid, "kernels: attention's window is ", options.window,
          ", it must be at least 1 token, or 0 for none");
  check_sinks(q, options.sinks);
  require(options.softcap >= 0, Code::kInvalid, "kernels: attention's softcap is ", options.softcap,
          ", it must be above 0, or 0 for none");
  if (cuda::takes(q)) {
    if (!cuda::takes(rows.positions)) check_rows(rows, q.size(0), pages.v.size(0), options.window);
    return cuda::attention_paged(q, pages, rows, options);
  }
  const Rows at = check_rows(rows, q.size(0), pages.v.size(0), options.window);
  const int64_t heads = pages.v.size(1);
  const AttentionShape shape{.group = q.size(1) / heads,
                             .head_dim = q.size(2),
                             .scale = options.scale,
                             .window = options.window,
                             .softcap = options.softcap};
  const int64_t page_size = shape.head_dim * kKeyTile, most = block_positions(shape.group);
  std::vector<int64_t> starts{0};  // rows of the blocks: neighbouring rows of one sequence
  for (int64_t r = 1; r < at.size(); ++r) {
    if (at.sequences[r] != at.sequences[r - 1] || r - starts.back() == most) starts.push_back(r);
  }
  const int64_t num_blocks = at.size() == 0 ? 0 : static_cast<int64_t>(starts.size());
  starts.push_back(at.size());
  const at::Tensor qc = q.contiguous(), out = at::empty_like(qc);
  const at::Tensor sinks = wide_sinks(q, options.sinks);
  with_type(q, "q", [&]<class T>(T) {
    using A = Wide<T>;
    for_each_task<A>({num_blocks * heads, forward_scratch(shape)}, [&](int64_t i, A* scratch) {
      const int64_t block = i / heads, head = i % heads, row = starts[block];
      const int64_t offset = (row * q.size(1) + head * shape.group) * shape.head_dim;
      simd.loops<T>().attention_forward(
          {.shape = shape,
           .keys = {.k = pages.k.defined() ? pages.k.const_data_ptr<T>() + head * page_size
                                           : nullptr,
                    .v = pages.v.const_data_ptr<T>() + head * page_size,
                    .stride = heads * page_size,
                    .pages = at.table(row)},
           .q = qc.const_data_ptr<T>() + offset,
           .q_stride = q.size(1) * shape.head_dim,
           .num_positions = starts[block + 1] - row,
           .positions = at.positions.data() + row,
           .out = out.mutable_data_ptr<T>() + offset,
           .sinks = sinks_of<A>(sinks, head * shape.group)},
          scratch);
    });
  });
  return out;
}

}  // namespace twinkle::kernels
