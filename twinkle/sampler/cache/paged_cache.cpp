#include "twinkle/sampler/cache/paged_cache.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace twinkle::sampler {

static_assert(kPageTokens == kernels::kKeyTile);

StateLayout layout_of(const std::vector<model::StateSpec>& states) {
  StateLayout layout;
  for (const model::StateSpec& state : states) layout.add(state.num_bytes, state.closed_bytes);
  return layout;
}

PagedCache::PagedCache(const std::vector<model::StateSpec>& states, at::ScalarType dtype,
                       at::Device device, int64_t num_pages)
    : layout_(layout_of(states)), device_(device) {
  for (const model::StateSpec& state : states) {
    const int64_t heads = state.num_heads, dim = state.head_dim;
    if (state.num_bytes > 0) {
      layers_.emplace_back();
      continue;
    }
    // Not make_pages: its zeros would make every page resident at once.
    const auto options = at::device(device).dtype(dtype);
    kernels::PagedKeys& pages = layers_.emplace_back();
    if (!state.latent) pages.k = at::empty({num_pages, heads, dim, kPageTokens}, options);
    pages.v = at::empty({num_pages, heads, kPageTokens, dim}, options);
  }
}

int64_t PagedCache::num_bytes(const std::vector<model::StateSpec>& states, at::ScalarType dtype,
                              int64_t num_pages) {
  int64_t of_token = 0;
  for (const model::StateSpec& state : states) of_token += state.token_size();
  return num_pages * kPageTokens * of_token * static_cast<int64_t>(c10::elementSize(dtype));
}

kernels::PagedRows PagedCache::rows_of(const std::vector<Chunk>& chunks, int64_t least_pages) {
  auto most = static_cast<size_t>(least_pages);
  int64_t num_rows = 0;
  for (const Chunk& chunk : chunks) {
    most = std::max(most, chunk.blocks->size());
    num_rows += chunk.end - chunk.begin;
  }
  const auto num_chunks = static_cast<int64_t>(chunks.size());
  kernels::PagedRows rows{at::empty({num_chunks, static_cast<int64_t>(most)}, at::kInt),
                          at::empty({num_rows}, at::kLong), at::empty({num_rows}, at::kLong)};
  auto* table = rows.block_tables.mutable_data_ptr<int32_t>();
  auto* sequence = rows.sequences.mutable_data_ptr<int64_t>();
  auto* position = rows.positions.mutable_data_ptr<int64_t>();
  for (int64_t s = 0; s < num_chunks; ++s, table += most) {
    const Chunk& chunk = chunks[static_cast<size_t>(s)];
    std::fill_n(table, most, 0);
    std::transform(chunk.blocks->begin(), chunk.blocks->end(), table,
                   [](const Block& block) { return block.page(); });
    for (int64_t p = chunk.begin; p < chunk.end; ++p) {
      *sequence++ = s;
      *position++ = p;
    }
  }
  return rows;
}

void PagedCache::start(const std::vector<Chunk>& chunks) {
  rows_ = rows_of(chunks);
  slots_.clear();
  int64_t row = 0;
  for (const Chunk& chunk : chunks) {
    const int64_t count = chunk.end - chunk.begin;
    slots_.push_back({.row = row, .count = count, .first = chunk.begin, .state = chunk.state});
    row += count;
  }
  if (device_.is_cpu()) return;
  rows_ = {rows_.block_tables.to(device_), rows_.sequences.to(device_),
           rows_.positions.to(device_)};
}

at::Tensor PagedCache::attend(size_t layer, const at::Tensor& q, const at::Tensor& k,
                              const at::Tensor& v, const nn::Rows&,
                              const nn::AttentionOptions& options) {
  kernels::PagedKeys& pages = layers_[layer];
  const int64_t rows = rows_.positions.numel();
  kernels::write_pages(pages, k.narrow(0, 0, rows), v.narrow(0, 0, rows), rows_);
  const at::Tensor out = kernels::attention_paged(q.narrow(0, 0, rows), pages, rows_, options);
  return rows == q.size(0) ? out : at::constant_pad_nd(out, {0, 0, 0, 0, 0, q.size(0) - rows});
}

std::span<const kernels::DeltaRun> PagedCache::states(size_t layer) {
  runs_ = slots_;
  for (kernels::DeltaRun& run : runs_) run.state += layout_.layers[layer].offset;
  return runs_;
}

void PagedCache::copy_page(int32_t from, int32_t to) {
  for (kernels::PagedKeys& pages : layers_) {
    for (const at::Tensor* half : {&pages.k, &pages.v}) {
      if (half->defined()) half->select(0, to).copy_(half->select(0, from));
    }
  }
}

}  // namespace twinkle::sampler
