// Memory for a model's weights on huge pages, side by side: a decoding step reads all of them once,
// and with small pages a fifth of its time goes to finding the pages. A place is freed when the
// last tensor in its block is. One thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace twinkle::model {

class WeightMemory {
 public:
  // Uninitialised. A small tensor comes from at::empty, and so does every tensor if the system has
  // no huge pages.
  at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype);

 private:
  std::shared_ptr<char> block_;  // memory for the next tensor
  int64_t used_ = 0, size_ = 0;  // bytes of it
};

// Makes glibc keep up to 64 MiB of free memory at the end of one heap for all threads, and take
// blocks of up to 8 MiB from there: otherwise every step gets fresh pages, each cleared by the
// system. glibc's own limit of blocks, 32 MiB, leaves larger holes, which raise the peak.
void keep_heap_pages();

}  // namespace twinkle::model
