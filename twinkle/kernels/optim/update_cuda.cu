// The tensors of a step in one launch: blocks of 2,048 elements find their tensor in the table.
#include "twinkle/kernels/cuda/device.cuh"

namespace twinkle::kernels::cuda {
namespace {

__device__ void step(const AdamFactors& c, const AdamArrays& arrays, int64_t i) {
  const float p = arrays.value[i], g = arrays.grad[i] * c.scale + p * c.l2;
  const float m = arrays.mean[i] + (g - arrays.mean[i]) * c.first;
  const float v = arrays.square[i] * c.keep_second + g * g * c.second;
  arrays.value[i] = p - (m * c.rate / (sqrt(v) / c.root + c.eps) + p * c.shrink);
  arrays.mean[i] = m;
  arrays.square[i] = v;
}

__device__ void step(const SgdFactors& c, const SgdArrays& arrays, int64_t i) {
  const float p = arrays.value[i], g = arrays.grad[i] * c.scale + p * c.l2;
  const float old = arrays.buffer == nullptr ? 0.0f : arrays.buffer[i];
  const float b = old * c.momentum + g * c.share;
  arrays.value[i] = p - (g * c.own + b * c.of_buffer) * c.rate;
  if (arrays.buffer != nullptr) arrays.buffer[i] = b;
}

// Calls visit(i) for the calling thread's elements of the block's part of its row.
template <class Row, class Visit>
__device__ void each_element(const Row& row, const Visit& visit) {
  const int64_t size_of_block = 2048, begin = (blockIdx.x - row.first_block) * size_of_block;
  const int64_t end = min(begin + size_of_block, row.size);
  for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) visit(i);
}

template <class Row>
__global__ void update(UpdateTable<Row> table) {
  const Row row = row_of_block(table.rows, table.num_rows, blockIdx.x);
  each_element(row, [&](int64_t i) { step(row.factors, row.arrays, i); });
}

__global__ void squares_of_blocks(UpdateTable<SquaresRow> table, double* parts) {
  const SquaresRow row = row_of_block(table.rows, table.num_rows, blockIdx.x);
  double sum = 0;
  each_element(row, [&](int64_t i) { sum += double(row.x[i]) * double(row.x[i]); });
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void squares_of_rows(UpdateTable<SquaresRow> table, const double* parts, double* sums) {
  const SquaresRow row = table.rows[blockIdx.x];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < update_blocks(row.size); i += blockDim.x) {
    sum += parts[row.first_block + i];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

void adam_update(const UpdateTable<AdamRow>& table, Stream stream) {
  launch("adam_update", {.x = table.num_blocks}, stream, update<AdamRow>, table);
}

void sgd_update(const UpdateTable<SgdRow>& table, Stream stream) {
  launch("sgd_update", {.x = table.num_blocks}, stream, update<SgdRow>, table);
}

void sums_of_squares(const UpdateTable<SquaresRow>& table, double* parts, double* sums,
                     Stream stream) {
  launch("sums_of_squares", {.x = table.num_blocks}, stream, squares_of_blocks, table, parts);
  launch("sums_of_squares", {.x = table.num_rows}, stream, squares_of_rows, table, parts, sums);
}

}  // namespace twinkle::kernels::cuda
