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

}  // namespace twinkle::model
