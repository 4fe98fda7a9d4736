#include <ATen/ATen.h>
#include <ATen/Context.h>

#include <algorithm>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/kernels/attention/attention_block.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {
namespace {

static_assert(kPageTokens == kKeyTile);

// ATen's flash kernels add up a backward pass in a fixed order only when it is told so.
class Deterministic {
 public:
  Deterministic() {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    at::globalContext().setDeterministicFillUninitializedMemory(
        false);  // a pass over each gradient
  }
  ~Deterministic() {
    at::globalContext().setDeterministicAlgorithms(before_, warned_);
    at::globalContext().setDeterministicFillUninitializedMemory(filled_);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  const bool before_ = at::globalContext().deterministicAlgorithms();
  const bool warned_ = at::globalContext().deterministicAlgorithmsWarnOnly();
  const bool filled_ = at::globalContext().deterministicFillUninitializedMemory();
};

void check_flash(const at::Tensor& q) {
  require(q.scalar_type() == at::kBFloat16 && q.size(2) % 8 == 0 && q.size(2) <= 256,
          Code::kInvalid, "kernels: attention's q is ", q.scalar_type(), " ", q.sizes(),
          ", on a CUDA device it must be bfloat16 with a head_dim of at most 256 that is a "
          "multiple of 8: ATen's flash kernels take no other");
}

// What both directions tell the flash kernels of a batch.
struct Varlen {
  at::Tensor cu_seqlens;  // int32
  int64_t longest = 0;
  std::optional<int64_t> left, right;  // tokens that are seen beside one's own; none: all

  Varlen(std::span<const int64_t> from, const AttentionOptions& options, const at::Device& device) {
    const std::vector<int32_t> ends(from.begin(), from.end());
    for (size_t s = 0; s + 1 < ends.size(); ++s) {
      longest = std::max<int64_t>(longest, ends[s + 1] - ends[s]);
    }
    cu_seqlens = table_on<int32_t>(device, ends).view(at::kInt);
    if (options.window > 0) left = options.window - 1, right = 0;
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
  check_flash(q);
  const Place place(q);
  const Varlen batch(cu_seqlens, options, place.device);
  if (batch.longest == 0) {
    return {at::empty_like(q), at::empty({0, q.size(1)}, q.options().dtype(at::kFloat))};
  }
  const auto [out, lse, random, unused, mask] = at::_flash_attention_forward(
      q.contiguous(), k.contiguous(), v.contiguous(), batch.cu_seqlens, batch.cu_seqlens,
      batch.longest, batch.longest, /*dropout_p=*/0, /*is_causal=*/true,
      /*return_debug_mask=*/false, options.scale, batch.left, batch.right);
  return {out, lse.t().contiguous()};  // [H, T] there
}

AttentionGrads attention_backward(const AttentionSaved& saved, std::span<const int64_t> cu_seqlens,
                                  const AttentionOptions& options, const AttentionNeeds& needs) {
  const auto& [grad, q, k, v, forward] = saved;
  check_flash(q);
  const Place place(q);
  const Varlen batch(cu_seqlens, options, place.device);
  if (batch.longest == 0) return {at::empty_like(q), at::empty_like(k), at::empty_like(v)};
  const Deterministic deterministic;
  // The state of the dropout that there is none of.
  const at::Tensor random = at::zeros({2}, q.options().dtype(at::kUInt64));
  const at::Tensor unused = at::zeros({}, random.options());
  auto [dq, dk, dv] = at::_flash_attention_backward(
      grad.contiguous(), q.contiguous(), k.contiguous(), v.contiguous(), forward.out,
      forward.lse.t().contiguous(), batch.cu_seqlens, batch.cu_seqlens, batch.longest,
      batch.longest, /*dropout_p=*/0, /*is_causal=*/true, random, unused, options.scale, batch.left,
      batch.right);
  return {needs.q ? dq : at::Tensor(), needs.k ? dk : at::Tensor(), needs.v ? dv : at::Tensor()};
}

void write_pages(PagedKeys& pages, const at::Tensor& k, const at::Tensor& v,
                 const PagedRows& rows) {
  const Place place(k);
  const Rows at(rows, place.device);
  const at::Tensor kc = k.contiguous(), vc = v.contiguous();
  cuda::write_pages(type_of(k), at.places(), pages_of(pages), kc.const_data_ptr(),
                    vc.const_data_ptr(), place.stream);
}

at::Tensor attention_paged(const at::Tensor& q, const PagedKeys& pages, const PagedRows& rows,
                           const AttentionOptions& options) {
  const Place place(q);
  const Rows at(rows, place.device);
  const at::Tensor qc = q.contiguous(), out = at::empty_like(qc);
  // No row is behind the end of the tables.
  const int64_t most = std::min(kMostChunks, (at.tables.size(1) + kChunkPages - 1) / kChunkPages);
  const at::Tensor partial =
      at::empty({q.size(0), q.size(1), most, q.size(2) + 2}, q.options().dtype(wide_of(q)));
  cuda::attention_paged(type_of(q),
                        {.places = at.places(),
                         .pages = pages_of(pages),
                         .q = qc.const_data_ptr(),
                         .heads = q.size(1),
                         .window = options.window,
                         .scale = options.scale},
                        {partial.mutable_data_ptr(), most}, out.mutable_data_ptr(), place.stream);
  return out;
}

}  // namespace twinkle::kernels::cuda
