// Spreads independent tasks of uneven size over the intra-op threads, each thread taking the next
// one when it is free. Which thread runs a task must not matter to its result. Internal to this
// folder.
#pragma once
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "twinkle/kernels/simd/team.h"

namespace twinkle::kernels {

struct Tasks {
  int64_t count = 0;
  int64_t scratch_size = 0;                      // elements that each thread may write
  int64_t most_workers = at::get_num_threads();  // 1: the calling thread alone
};

// Calls work(i, scratch) once for each i in [0, count); scratch is `scratch_size` elements of A,
// 64-byte aligned, uninitialised, the calling thread's own.
template <class A, class Work>
void for_each_task(const Tasks& tasks, const Work& work) {
  std::atomic<int64_t> next{0};
  const int64_t workers = std::min(tasks.count, tasks.most_workers);
  parallel_for(0, workers, 1, [&](int64_t, int64_t) {
    const at::Tensor scratch = at::empty({tasks.scratch_size}, c10::CppTypeToScalarType<A>::value);
    for (int64_t i = next++; i < tasks.count; i = next++) work(i, scratch.mutable_data_ptr<A>());
  });
}

// Rows per chunk of a row-wise loop, so that a chunk is worth a thread's start.
inline int64_t row_grain(int64_t width) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width));
}

}  // namespace twinkle::kernels
