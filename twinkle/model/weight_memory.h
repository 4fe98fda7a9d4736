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
  // Uninitialised. A tensor that is too small to matter lies where at::empty puts it, and so does
  // everything where the system has no huge pages.
  at::Tensor empty(at::IntArrayRef shape, at::ScalarType dtype);

 private:
  std::shared_ptr<char> block_;  // what the next tensor is cut from
  int64_t used_ = 0, size_ = 0;  // bytes of it
};

// Makes glibc keep up to 16 MiB that lie free at a heap's end, and take blocks of up to 8 MiB from
// there: else a forward's results are made of fresh pages again and again, each cleared by the
// system. Left to itself it takes blocks of up to 32 MiB so once one was freed, and the holes of
// large ones made the peak of C1 80 MiB higher, and no step faster.
void keep_heap_pages();

}  // namespace twinkle::model
