// While it lives, ATen's operators add up in a fixed order: on a device some, such as index_add_
// and flash attention's backward, do so only on request.
#pragma once
#include <ATen/Context.h>

namespace twinkle::kernels {

class Deterministic {
 public:
  Deterministic() {
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
    // That would be a pass over every fresh tensor.
    at::globalContext().setDeterministicFillUninitializedMemory(false);
  }
  ~Deterministic() {
    at::globalContext().setDeterministicAlgorithms(before_, warned_);
    at::globalContext().setDeterministicFillUninitializedMemory(filled_);
  }
  Deterministic(const Deterministic&) = delete;
  Deterministic& operator=(const Deterministic&) = delete;

 private:
  const bool before_ = at::globalContext().deterministicAlgorithms();
  const bool warned_ = at::globalContext().deterministicAlgorithmsWarnOnly();
  const bool filled_ = at::globalContext().deterministicFillUninitializedMemory();
};

}  // namespace twinkle::kernels
