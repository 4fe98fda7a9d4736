// Memory that pieces of the base are gathered into, one after the other: what has been given back
// is used again, since fresh pages would each be cleared by the system. One thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

namespace twinkle::parallel {

class Buffers {
 public:
  Buffers() { free_.reserve(kMost + 1); }

  // [count], uninitialised.
  at::Tensor take(int64_t count, at::ScalarType type);
  void give(at::Tensor buffer) noexcept;

 private:
  // Buffers of a layer in use and of a requested one. The embedding's goes back to the system.
  static constexpr size_t kMost = 2;
  std::vector<at::Tensor> free_;
};

}  // namespace twinkle::parallel
