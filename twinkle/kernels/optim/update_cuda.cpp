#include <ATen/ATen.h>

#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/kernels/cuda/cuda.h"
#include "twinkle/kernels/cuda/place.h"

namespace twinkle::kernels::cuda {
namespace {

// Null when undefined. Every tensor of a row has as many elements as `like`.
float* data_of(const at::Tensor& x, const at::Tensor& like) {
  if (!x.defined()) return nullptr;
  require(x.scalar_type() == at::kFloat && x.is_contiguous() && x.numel() == like.numel() &&
              x.device() == like.device(),
          Code::kInvalid, "kernels: a tensor of a step is ", x.scalar_type(), " ", x.sizes(),
          " on ", x.device(), ", it must be contiguous float32 like the others, ", like.sizes(),
          " on ", like.device());
  return x.mutable_data_ptr<float>();
}

// Row i's place among the blocks, and the table on the device.
template <class Row>
struct Table {
  std::vector<Row> rows;
  int64_t num_blocks = 0;
  at::Tensor bytes;

  void add(Row row) {
    row.first_block = num_blocks;
    num_blocks += update_blocks(row.size);
    rows.push_back(row);
  }
  UpdateTable<Row> on(const at::Device& device) {
    bytes = table_on<Row>(device, rows);
    return {static_cast<const Row*>(bytes.const_data_ptr()), std::ssize(rows), num_blocks};
  }
};

}  // namespace

void adam_update(std::span<const AdamTensors> tensors) {
  if (tensors.empty()) return;
  Table<AdamRow> table;
  for (const auto& [factors, grad, value, mean, square] : tensors) {
    const AdamArrays arrays{data_of(grad, value), data_of(value, value), data_of(mean, value),
                            data_of(square, value)};
    table.add({.factors = factors, .arrays = arrays, .size = value.numel()});
  }
  const StreamGuard place(tensors.front().value);
  cuda::adam_update(table.on(place.device), place.stream);
}

void sgd_update(std::span<const SgdTensors> tensors) {
  if (tensors.empty()) return;
  Table<SgdRow> table;
  for (const auto& [factors, grad, value, buffer] : tensors) {
    const SgdArrays arrays{data_of(grad, value), data_of(value, value), data_of(buffer, value)};
    table.add({.factors = factors, .arrays = arrays, .size = value.numel()});
  }
  const StreamGuard place(tensors.front().value);
  cuda::sgd_update(table.on(place.device), place.stream);
}

at::Tensor sums_of_squares(std::span<const at::Tensor> tensors) {
  if (tensors.empty()) return at::empty({0}, at::kDouble);
  Table<SquaresRow> table;
  for (const at::Tensor& x : tensors) table.add({.x = data_of(x, x), .size = x.numel()});
  const StreamGuard place(tensors.front());
  const auto options = tensors.front().options().dtype(at::kDouble);
  const at::Tensor sums = at::empty({std::ssize(tensors)}, options);
  const at::Tensor parts = at::empty({table.num_blocks}, options);
  cuda::sums_of_squares(table.on(place.device), parts.mutable_data_ptr<double>(),
                        sums.mutable_data_ptr<double>(), place.stream);
  return sums;
}

}  // namespace twinkle::kernels::cuda
