#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "twinkle/kernels/attention/attention_block.h"
#include "twinkle/kernels/attention/attention_library.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {
namespace {

static_assert(kPageTokens == kKeyTile);

// A batch as attention_packed.cu reads it.
struct Packed {
  at::Tensor q, k, v, spans;
  AttentionOptions options;

  Packed(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
         std::span<const int64_t> cu_seqlens, const AttentionOptions& options)
      : q(q.contiguous()), k(k.contiguous()), v(v.contiguous()), options(options) {
    std::vector<int64_t> of_rows;
    for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
      for (int64_t row = cu_seqlens[s]; row < cu_seqlens[s + 1]; ++row)
        of_rows.insert(of_rows.end(), {cu_seqlens[s], cu_seqlens[s + 1]});
    }
    spans = table_on<int64_t>(q.device(), of_rows);
  }
  PackedRows rows() const {
    return {.q = q.const_data_ptr(),
            .k = k.const_data_ptr(),
            .v = v.const_data_ptr(),
            .spans = static_cast<const int64_t*>(spans.const_data_ptr()),
            .rows = q.size(0),
            .heads = q.size(1),
            .key_heads = k.size(1),
            .dim = q.size(2),
            .window = options.window,
            .scale = options.scale};
  }
};

struct Rows {
  at::Tensor tables, sequences, positions;

  Rows(const PagedRows& rows, const at::Device& device)
      : tables(rows.block_tables.to(device).contiguous()),
        sequences(rows.sequences.to(device, at::kLong).contiguous()),
        positions(rows.positions.to(device, at::kLong).contiguous()) {}
  PagedPlaces places() const {
    return {tables.const_data_ptr<int32_t>(), tables.size(1), sequences.const_data_ptr<int64_t>(),
            positions.const_data_ptr<int64_t>(), positions.size(0)};
  }
};

PagedPages pages_of(const PagedKeys& pages) {
  return {pages.k.mutable_data_ptr(), pages.v.mutable_data_ptr(), pages.k.size(1), pages.k.size(2)};
}

}  // namespace

AttentionResult attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          std::span<const int64_t> cu_seqlens, const AttentionOptions& options) {
  const StreamGuard place(q);
  if (is_for_library(q)) return library_attention(q, k, v, cu_seqlens, options);
  const Packed batch(q, k, v, cu_seqlens, options);
  AttentionResult result{at::empty_like(batch.q),
                         at::empty({q.size(0), q.size(1)}, q.options().dtype(wide_of(q)))};
  attention_packed(type_of(q), batch.rows(), result.out.mutable_data_ptr(),
                   result.lse.mutable_data_ptr(), place.stream);
  return result;
}

AttentionGrads attention_backward(const AttentionSaved& saved, std::span<const int64_t> cu_seqlens,
                                  const AttentionOptions& options, const AttentionNeeds& needs) {
  const auto& [grad, q, k, v, forward] = saved;
  const StreamGuard place(q);
  const auto wanted = [&](const at::Tensor& dq, const at::Tensor& dk, const at::Tensor& dv) {
    return AttentionGrads{needs.q ? dq : at::Tensor(), needs.k ? dk : at::Tensor(),
                          needs.v ? dv : at::Tensor()};
  };
  if (is_for_library(q)) {
    const auto [dq, dk, dv] = library_attention_backward(saved, cu_seqlens, options);
    return wanted(dq, dk, dv);
  }
  const Packed batch(q, k, v, cu_seqlens, options);
  const at::Tensor slope = grad.contiguous(), dq = at::empty_like(batch.q),
                   dk = at::empty_like(batch.k), dv = at::empty_like(batch.v);
  attention_packed_backward(
      type_of(q), batch.rows(),
      {slope.const_data_ptr(), forward.out.const_data_ptr(), forward.lse.const_data_ptr()},
      {dq.mutable_data_ptr(), dk.mutable_data_ptr(), dv.mutable_data_ptr()}, place.stream);
  return wanted(dq, dk, dv);
}

void write_pages(PagedKeys& pages, const at::Tensor& k, const at::Tensor& v,
                 const PagedRows& rows) {
  const StreamGuard place(k);
  const Rows at(rows, place.device);
  const at::Tensor kc = k.contiguous(), vc = v.contiguous();
  cuda::write_pages(type_of(k), at.places(), pages_of(pages), kc.const_data_ptr(),
                    vc.const_data_ptr(), place.stream);
}

at::Tensor attention_paged(const at::Tensor& q, const PagedKeys& pages, const PagedRows& rows,
                           const AttentionOptions& options) {
  const StreamGuard place(q);
  const Rows at(rows, place.device);
  const at::Tensor qc = q.contiguous(), out = at::empty_like(qc);
  const PagedQuery query{.places = at.places(),
                         .pages = pages_of(pages),
                         .q = qc.const_data_ptr(),
                         .heads = q.size(1),
                         .window = options.window,
                         .scale = options.scale,
                         .rows_together = q.size(0) > at.tables.size(0)};
  // No row is behind the end of the tables.
  const int64_t most = std::min(kMaxChunks, (at.tables.size(1) + kChunkPages - 1) / kChunkPages);
  const int64_t kept = attention_paged_in_one_pass(type_of(q), query) ? 0 : q.size(0);
  const at::Tensor partial =
      at::empty({kept, q.size(1), most, q.size(2) + 2}, q.options().dtype(wide_of(q)));
  cuda::attention_paged(type_of(q), query, {partial.mutable_data_ptr(), most},
                        out.mutable_data_ptr(), place.stream);
  return out;
}

}  // namespace twinkle::kernels::cuda
