#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {
namespace {

// The parts of one call, as the kernels read them.
struct Parts {
  std::vector<LoraRow> rows;
  int64_t num_tiles = 0, h_size = 0, highest_rank = 0;
  at::Tensor table;

  Parts(std::span<const LoraPart> parts, const at::Device& device);
  LoraTable on_device() const {
    return {static_cast<const LoraRow*>(table.const_data_ptr()), std::ssize(rows), num_tiles};
  }
};

LoraRow row_of(const LoraPart& part) {
  require(part.factors->packed(), Code::kInvalid,
          "kernels: lora's factors are not packed, on a CUDA device they must be: repack() them");
  keep(part.factors->a_read());
  keep(part.factors->b_rO);
  const LoraDropout& dropout = part.dropout;
  return {.begin = part.begin,
          .rows = part.end - part.begin,
          .first = part.first,
          .rank = part.factors->rank(),
          .a = part.factors->a_read().const_data_ptr(),
          .b = part.factors->b_rO.const_data_ptr(),
          .scale = part.factors->scale,
          .key = dropout.key,
          .limit = static_cast<uint64_t>(dropout.p * 4294967296.0),
          .keep = 1.0 / (1.0 - dropout.p)};
}

Parts::Parts(std::span<const LoraPart> parts, const at::Device& device) {
  for (const LoraPart& part : parts) {
    LoraRow row = row_of(part);
    row.h = h_size, row.first_block = num_tiles;
    h_size += row.rows * row.rank;
    num_tiles += (row.rows + kLoraTileRows - 1) / kLoraTileRows;
    highest_rank = std::max(highest_rank, row.rank);
    rows.push_back(row);
  }
  table = table_on<LoraRow>(device, rows);
}

// The gradients of one factor that are wanted, an adapter's parts together and in order.
struct Gradients {
  std::vector<LoraGradRow> rows;
  std::vector<int64_t> order;
  at::Tensor rows_table, order_table;

  Gradients(std::span<const LoraPart> parts, LoraFactor factor, const at::Device& device);
  LoraGrads on_device(int64_t highest_rank) const {
    return {static_cast<const LoraGradRow*>(rows_table.const_data_ptr()),
            static_cast<const int64_t*>(order_table.const_data_ptr()), std::ssize(rows),
            highest_rank};
  }
};

Gradients::Gradients(std::span<const LoraPart> parts, LoraFactor factor, const at::Device& device) {
  std::vector<std::pair<const LoraFactors*, std::vector<int64_t>>> adapters;
  const auto grad_of = [&](int64_t p) {
    return factor == LoraFactor::kA ? parts[p].grad_a : parts[p].grad_b;
  };
  for (int64_t p = 0; p < std::ssize(parts); ++p) {
    if (!grad_of(p).defined()) continue;
    auto mine = std::find_if(adapters.begin(), adapters.end(), [&](const auto& adapter) {
      return adapter.first == parts[p].factors;
    });
    if (mine == adapters.end()) mine = adapters.insert(mine, {parts[p].factors, {}});
    mine->second.push_back(p);
  }
  for (const auto& [factors, mine] : adapters) {
    rows.push_back({.first = std::ssize(order),
                    .count = std::ssize(mine),
                    .grad = grad_of(mine.front()).mutable_data_ptr()});
    order.insert(order.end(), mine.begin(), mine.end());
  }
  rows_table = table_on<LoraGradRow>(device, rows);
  order_table = table_on<int64_t>(device, order);
}

// h := in factor^T
void shrink(Type type, const LoraIn& of, at::Tensor& h, Stream stream) {
  const int64_t num_parts = lora_shrink_parts(type, of.width);
  const at::Tensor parts =
      at::empty({num_parts > 1 ? num_parts * h.numel() : 0}, h.options().dtype(at::kFloat));
  cuda::lora_shrink(type, of, h.mutable_data_ptr(), h.numel(), parts.mutable_data_ptr<float>(),
                    stream);
}

}  // namespace

at::Tensor lora_forward(const at::Tensor& x, std::span<const LoraPart> parts, at::Tensor& y) {
  const StreamGuard place(x);
  const Type type = type_of(x);
  const Parts of(parts, place.device);
  at::Tensor h = at::empty({of.h_size}, x.options().dtype(wide_of(x)));
  const LoraTable table = of.on_device();
  shrink(type, {table, LoraFactor::kA, x.const_data_ptr(), x.size(1)}, h, place.stream);
  cuda::lora_expand(type, {table, LoraFactor::kB, nullptr, y.size(1)}, h.const_data_ptr(),
                    y.mutable_data_ptr(), place.stream);
  return h;
}

void lora_backward(const LoraSaved& saved, std::span<const LoraPart> parts, at::Tensor& dx) {
  const auto& [grad, x, h] = saved;
  const StreamGuard place(x);
  const Type type = type_of(x);
  const Parts of(parts, place.device);
  const Gradients of_a(parts, LoraFactor::kA, place.device);
  const Gradients of_b(parts, LoraFactor::kB, place.device);
  at::Tensor dh = at::empty_like(h);
  const LoraIn meets_a{of.on_device(), LoraFactor::kA, x.const_data_ptr(), x.size(1)};
  const LoraIn meets_b{of.on_device(), LoraFactor::kB, grad.const_data_ptr(), grad.size(1)};
  shrink(type, meets_b, dh, place.stream);
  if (dx.defined()) {
    cuda::lora_expand(type, meets_a, dh.const_data_ptr(), dx.mutable_data_ptr(), place.stream);
  }
  cuda::lora_outer(type, meets_b, h.const_data_ptr(), of_b.on_device(of.highest_rank),
                   place.stream);
  cuda::lora_outer(type, meets_a, dh.const_data_ptr(), of_a.on_device(of.highest_rank),
                   place.stream);
}

}  // namespace twinkle::kernels::cuda
