#include "twinkle/nn/head/head.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "twinkle/base/error.h"
#include "twinkle/kernels/softmax.h"

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

// The end of the chunk that starts at `begin`. A trained head's chunks end with their sequence, the
// unit of every sum.
int64_t chunk_end(const Targets& targets, int64_t begin, int64_t chunk, const Packing* packing) {
  const auto n = static_cast<int64_t>(targets.rows.size());
  int64_t end = std::min(n, begin + chunk);
  if (!packing) return end;
  const auto& cu = packing->cu_seqlens;
  const int64_t limit =
      *std::upper_bound(cu.begin(), cu.end(), targets.rows[static_cast<size_t>(begin)]);
  const auto stop = std::lower_bound(targets.rows.begin() + begin, targets.rows.end(), limit);
  return std::min(end, static_cast<int64_t>(stop - targets.rows.begin()));
}

int64_t chunk_rows(int64_t chunk, const at::Tensor& weight) {
  if (chunk > 0) return chunk;
  const int64_t row = weight.size(0) * static_cast<int64_t>(weight.element_size());
  const int64_t bytes = weight.is_cpu() ? kLogitBytes : kDeviceLogitBytes;
  const int64_t most = std::max<int64_t>(1, bytes / row);
  return most < 16 ? most : most / 16 * 16;  // what products are cut into without a rest
}

void keep(HeadOutput& out, const std::vector<RowStats>& stats, int64_t n, bool entropy) {
  for (int64_t i = 0; i < n; ++i) {
    out.logprobs.push_back(static_cast<float>(stats[static_cast<size_t>(i)].logprob));
    if (entropy) out.entropies.push_back(static_cast<float>(stats[static_cast<size_t>(i)].entropy));
  }
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
                        const HeadOptions& options) {
  const auto n = static_cast<int64_t>(targets.rows.size());
  const int64_t chunk = std::min(n, chunk_rows(options.chunk, head.weight));
  HeadOutput out;
  std::vector<RowStats> stats(static_cast<size_t>(chunk));
  for (int64_t begin = 0; begin < n;) {
    const int64_t size = chunk_end(targets, begin, chunk, nullptr) - begin;
    const at::Tensor logits = product(take(hidden, targets.rows, begin, size), head);
    logprobs_of(logits, part(targets.ids, begin, size), part(targets.temperature, begin, size),
                options.entropy, stats);
    keep(out, stats, size, options.entropy);
    begin += size;
  }
  return out;
}

void head_logits(const at::Tensor& hidden, const Linear& head, float temperature,
                 std::span<float> out) {
  const int64_t n = hidden.size(0), width = head.weight.size(0), chunk = chunk_rows(0, head.weight);
  require(std::ssize(out) == n * width, Code::kInternal, "head: ", out.size(), " logits for ", n,
          " rows of ", width);
  at::Tensor logits = at::from_blob(out.data(), {n, width}, at::kFloat);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t size = std::min(chunk, n - begin);
    at::Tensor part = logits.narrow(0, begin, size);
    part.copy_(product(hidden.narrow(0, begin, size), head));
    if (temperature != 1) part.div_(temperature);
  }
}

void head_logits_backward(const at::Tensor& hidden, const Linear& head, float temperature,
                          std::span<const float> grad, at::Tensor dhidden) {
  const int64_t n = hidden.size(0), width = head.weight.size(0), chunk = chunk_rows(0, head.weight);
  require(std::ssize(grad) == n * width, Code::kInternal, "head: ", grad.size(),
          " gradients of logits for ", n, " rows of ", width);
  const at::Tensor given = at::from_blob(const_cast<float*>(grad.data()), {n, width}, at::kFloat);
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t size = std::min(chunk, n - begin);
    const at::Tensor d = given.narrow(0, begin, size).div(temperature).to(hidden.options());
    dhidden.narrow(0, begin, size).add_(transposed_product(d, head.weight, head.exact));
    if (head.weight_grad)
      add_thread_invariant_product(head.weight_grad->buffer(head.weight), d.t(),
                                   hidden.narrow(0, begin, size));
    if (head.bias_grad) {
      at::Tensor sum = head.bias_grad->buffer(head.bias).unsqueeze(1);
      add_thread_invariant_product(sum, d.t(), at::ones({size, 1}, d.options()));
    }
  }
}

HeadOutput head_backward(const at::Tensor& hidden, const Linear& head, const Targets& targets,
                         const TokenGrad& grad, const Packing& packing, const Owners& owners,
                         const HeadOptions& options) {
  const auto n = static_cast<int64_t>(targets.rows.size());
  const bool entropy = options.entropy || !options.entropy_grad.empty();
  HeadOutput out;
  out.dhidden = at::zeros_like(hidden);
  const int64_t chunk = std::min(n, chunk_rows(options.chunk, head.weight));
  std::vector<RowStats> stats(static_cast<size_t>(chunk));
  std::vector<float> scale(static_cast<size_t>(chunk));
  for (int64_t begin = 0; begin < n;) {
    const int64_t size =
        chunk_end(targets, begin, chunk, head.weight_grad ? &packing : nullptr) - begin;
    const at::Tensor x = take(hidden, targets.rows, begin, size);
    at::Tensor logits = product(x, head);
    const auto ids = part(targets.ids, begin, size);
    const auto temperature = part(targets.temperature, begin, size);
    logprobs_of(logits, ids, temperature, entropy, stats);
    keep(out, stats, size, entropy);
    const auto g = std::span(scale).first(static_cast<size_t>(size));
    grad(begin, std::span(out.logprobs).last(static_cast<size_t>(size)), g);
    logits_grad_(logits, ids, temperature, stats, g, part(options.entropy_grad, begin, size));
    put(out.dhidden, targets.rows, begin, transposed_product(logits, head.weight, head.exact));
    if (head.weight_grad) {
      const int64_t row = targets.rows[static_cast<size_t>(begin)];
      const auto& cu = packing.cu_seqlens;
      const auto s =
          static_cast<size_t>(std::upper_bound(cu.begin(), cu.end(), row) - cu.begin() - 1);
      if (owners.learn[s])
        add_thread_invariant_product(head.weight_grad->buffer(head.weight), logits.t(), x);
    }
    begin += size;
  }
  return out;
}

}  // namespace twinkle::nn
