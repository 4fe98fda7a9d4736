#include "twinkle/nn/head/head.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "twinkle/base/error.h"
#include "twinkle/kernels/softmax.h"
#include "twinkle/nn/head/row_targets.h"

namespace twinkle::nn {
namespace {

using kernels::RowStats;

std::span<const int32_t> part(const std::vector<int32_t>& all, int64_t begin, int64_t n) {
  return std::span(all).subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
}
std::span<const float> part(std::span<const float> all, int64_t begin, int64_t n) {
  return all.empty() ? all : all.subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
}

at::Tensor take(const at::Tensor& hidden, const std::vector<int64_t>& rows, int64_t begin,
                int64_t n) {
  // A run of neighbouring rows, the usual case, is a view.
  const auto first = rows[static_cast<size_t>(begin)],
             last = rows[static_cast<size_t>(begin + n - 1)];
  if (last - first == n - 1) return hidden.narrow(0, first, n);
  const auto index = at::from_blob(const_cast<int64_t*>(rows.data() + begin), {n}, at::kLong);
  return hidden.index_select(0, index.to(hidden.device()));
}

void put(at::Tensor& dhidden, const std::vector<int64_t>& rows, int64_t begin,
         const at::Tensor& values) {
  const int64_t n = values.size(0);
  const auto index = at::from_blob(const_cast<int64_t*>(rows.data() + begin), {n}, at::kLong);
  dhidden.index_copy_(0, index.to(dhidden.device()), values);
}

// Where the chunks of a backward may end.
enum class ChunkCut {
  kAnywhere,
  kBetween,       // between sequences, or inside one that is longer than a chunk
  kWithSequence,  // at a sequence's end at the latest: the unit of a trained head's sums
};

// The number of targets in rows before `row`.
int64_t targets_before(const Targets& targets, int64_t row) {
  return std::ranges::lower_bound(targets.rows, row) - targets.rows.begin();
}

// The end of the chunk that starts at `begin`.
int64_t chunk_end(const Targets& targets, int64_t begin, int64_t chunk, ChunkCut cut,
                  const Rows& rows) {
  const auto n = static_cast<int64_t>(targets.rows.size());
  const int64_t end = std::min(n, begin + chunk);
  const auto segment_at = [&](int64_t target) {
    return rows.segment_of(targets.rows[static_cast<size_t>(target)]);
  };
  if (cut == ChunkCut::kWithSequence)
    return std::min(end, targets_before(targets, rows.cu_seqlens[segment_at(begin) + 1]));
  if (cut == ChunkCut::kAnywhere || end == n) return end;
  const int64_t start = targets_before(targets, rows.cu_seqlens[segment_at(end)]);
  return start > begin ? start : end;
}

int64_t chunk_rows(int64_t chunk, const at::Tensor& weight) {
  if (chunk > 0) return chunk;
  const int64_t row = weight.size(0) * static_cast<int64_t>(weight.element_size());
  const int64_t bytes = weight.is_cpu() ? kLogitBytes : kDeviceLogitBytes;
  const int64_t most = std::max<int64_t>(1, bytes / row);
  const int64_t step = most < 256 || weight.is_cpu() ? 16 : 256;
  return most < 16 ? most : most / step * step;  // a step that divides products without a rest
}

// The adapters' part of a chunk.
class ChunkDelta {
 public:
  // `chunk_of` gives the chunk's rows; not called without adapters.
  template <class ChunkOf>
  ChunkDelta(const Linear& head, ChunkOf&& chunk_of) : delta_(head.delta) {
    if (delta_) rows_ = chunk_of();
  }

  void add(const at::Tensor& x, at::Tensor& logits) {
    if (delta_) saved_ = delta_->forward(x, rows_, logits);
  }
  void add_backward(const at::Tensor& dlogits, const at::Tensor& x, at::Tensor& dx) const {
    if (delta_) delta_->backward(dlogits, x, saved_, rows_, dx);
  }

 private:
  Delta* delta_;
  Rows rows_;
  std::vector<at::Tensor> saved_;
};

void cap(at::Tensor& logits, const Linear& head) {
  if (head.softcap > 0) kernels::softcap_(logits, head.softcap);
}

// Rows whose gradient is computed at a time where logits are capped: capped logits are copied for
// the cap's slope, of as many rows as there are threads.
int64_t capped_rows() { return std::max(1, at::get_num_threads()); }

std::span<const int64_t> part(const std::vector<int64_t>& all, int64_t begin, int64_t n) {
  return std::span(all).subspan(static_cast<size_t>(begin), static_cast<size_t>(n));
}

}  // namespace

void logprobs_of(const at::Tensor& logits, std::span<const int32_t> ids,
                 std::span<const float> temperature, bool entropy, std::span<RowStats> stats) {
  kernels::softmax_stats(logits, ids, temperature, entropy, stats);
}

void logits_grad_(at::Tensor& logits, std::span<const int32_t> ids,
                  std::span<const float> temperature, std::span<const RowStats> stats,
                  std::span<const float> grad, std::span<const float> entropy_grad) {
  kernels::softmax_grad_(logits, ids, temperature, stats, grad, entropy_grad);
}

HeadOutput head_forward(const at::Tensor& hidden, const Linear& head, const Targets& targets,
                        const Rows& rows, const HeadOptions& options) {
  const RowTargets by_row(targets);
  const Targets& lead = by_row.lead();
  const auto n = static_cast<int64_t>(lead.rows.size());
  const int64_t chunk = std::min(n, chunk_rows(options.chunk, head.weight));
  HeadOutput out;
  std::vector<RowStats> stats(static_cast<size_t>(chunk));
  for (int64_t begin = 0; begin < n;) {
    const int64_t size = std::min(chunk, n - begin);
    const at::Tensor x = take(hidden, lead.rows, begin, size);
    at::Tensor logits = product(x, head);
    ChunkDelta(head, [&] { return rows.gather(part(lead.rows, begin, size)); }).add(x, logits);
    cap(logits, head);
    logprobs_of(logits, part(lead.ids, begin, size), part(lead.temperature, begin, size),
                options.entropy, stats);
    by_row.append(begin, logits, stats, options.entropy, out);
    begin += size;
  }
  return out;
}

at::Tensor sampling_logits(const at::Tensor& hidden, const Linear& head, const Rows& rows) {
  at::Tensor logits = linear(hidden, head, rows);
  cap(logits, head);
  return logits;
}

void head_logits(const at::Tensor& hidden, const Linear& head, const LogitsOf& of,
                 std::span<float> out) {
  const int64_t n = hidden.size(0), width = head.weight.size(0), chunk = chunk_rows(0, head.weight);
  require(std::ssize(out) == n * width, Code::kInternal, "head: ", out.size(), " logits for ", n,
          " rows of ", width);
  Rows whole;
  whole.add(n, of.segment);
  at::Tensor logits = at::from_blob(out.data(), {n, width}, at::kFloat);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t size = std::min(chunk, n - begin);
    const at::Tensor x = hidden.narrow(0, begin, size);
    at::Tensor y = product(x, head);
    ChunkDelta(head, [&] { return whole.part(begin, size); }).add(x, y);
    cap(y, head);
    at::Tensor part = logits.narrow(0, begin, size);
    part.copy_(y);
    if (of.temperature != 1) part.div_(of.temperature);
  }
}

void head_logits_backward(const at::Tensor& hidden, const Linear& head, const LogitsOf& of,
                          std::span<const float> grad, at::Tensor dhidden) {
  const int64_t n = hidden.size(0), width = head.weight.size(0), chunk = chunk_rows(0, head.weight);
  require(std::ssize(grad) == n * width, Code::kInternal, "head: ", grad.size(),
          " gradients of logits for ", n, " rows of ", width);
  Rows whole;
  whole.add(n, of.segment);
  const at::Tensor given = at::from_blob(const_cast<float*>(grad.data()), {n, width}, at::kFloat);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t size = std::min(chunk, n - begin);
    const at::Tensor x = hidden.narrow(0, begin, size);
    at::Tensor d = given.narrow(0, begin, size).div(of.temperature).to(hidden.options());
    ChunkDelta delta(head, [&] { return whole.part(begin, size); });
    if (head.delta || head.softcap > 0) {  // for what its backward reads, and the slopes
      at::Tensor y = head.softcap > 0 ? product(x, head) : at::zeros_like(d);
      delta.add(x, y);
      cap(y, head);
      if (head.softcap > 0) kernels::softcap_grad_(d, y, head.softcap);
    }
    at::Tensor dx = transposed_product(d, head.weight, head.exact);
    delta.add_backward(d, x, dx);
    dhidden.narrow(0, begin, size).add_(dx);
    if (head.weight_grad)
      add_thread_invariant_product(head.weight_grad->buffer(head.weight), d.t(), x);
    if (head.bias_grad) {
      at::Tensor sum = head.bias_grad->buffer(head.bias).unsqueeze(1);
      add_thread_invariant_product(sum, d.t(), at::ones({size, 1}, d.options()));
    }
  }
}

HeadOutput head_backward(const at::Tensor& hidden, const Linear& head, const Targets& targets,
                         const TokenGrad& grad, const Rows& rows, const HeadOptions& options) {
  const RowTargets by_row(targets);
  const Targets& lead = by_row.lead();
  const auto n = static_cast<int64_t>(lead.rows.size());
  const bool entropy = options.entropy || !options.entropy_grad.empty();
  const ChunkCut cut = head.weight_grad ? ChunkCut::kWithSequence
                       : head.delta     ? ChunkCut::kBetween
                                        : ChunkCut::kAnywhere;
  HeadOutput out;
  out.dhidden = at::zeros_like(hidden);
  const int64_t chunk = std::min(n, chunk_rows(options.chunk, head.weight));
  std::vector<RowStats> stats(static_cast<size_t>(chunk));
  std::vector<float> slopes;
  for (int64_t begin = 0; begin < n;) {
    const size_t s = rows.segment_of(lead.rows[static_cast<size_t>(begin)]);
    const int64_t size = chunk_end(lead, begin, chunk, cut, rows) - begin;
    const at::Tensor x = take(hidden, lead.rows, begin, size);
    at::Tensor logits = product(x, head);
    ChunkDelta delta(head, [&] { return rows.gather(part(lead.rows, begin, size)); });
    delta.add(x, logits);
    cap(logits, head);
    logprobs_of(logits, part(lead.ids, begin, size), part(lead.temperature, begin, size), entropy,
                stats);
    by_row.append(begin, logits, stats, entropy, out);
    const int64_t first = by_row.first(begin), num = by_row.first(begin + size) - first;
    const auto logprobs = std::span(out.logprobs).last(static_cast<size_t>(num));
    slopes.resize(static_cast<size_t>(num));
    grad(first, logprobs, slopes);
    const int64_t step = head.softcap > 0 ? capped_rows() : size;
    for (int64_t r = 0; r < size; r += step) {
      at::Tensor some = logits.narrow(0, r, std::min(step, size - r));
      const at::Tensor capped = head.softcap > 0 ? some.clone() : at::Tensor();
      const int64_t skipped = by_row.first(begin + r) - first,
                    count = by_row.first(begin + r + some.size(0)) - first - skipped;
      by_row.logits_grad_(begin + r, some, std::span(stats).subspan(static_cast<size_t>(r)),
                          part(logprobs, skipped, count), part(slopes, skipped, count),
                          part(options.entropy_grad, first + skipped, count));
      if (capped.defined()) kernels::softcap_grad_(some, capped, head.softcap);
    }
    at::Tensor dx = transposed_product(logits, head.weight, head.exact);
    delta.add_backward(logits, x, dx);
    put(out.dhidden, lead.rows, begin, dx);
    if (head.weight_grad && rows.segments[s].learn)
      add_thread_invariant_product(head.weight_grad->buffer(head.weight), logits.t(), x);
    begin += size;
  }
  return out;
}

}  // namespace twinkle::nn
