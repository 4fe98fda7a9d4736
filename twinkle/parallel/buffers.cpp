#include "twinkle/parallel/buffers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "twinkle/model/weights/weight_memory.h"

namespace twinkle::parallel {

at::Tensor Buffers::take(int64_t count, at::ScalarType type) {
  const auto found = std::ranges::find(free_, count, [](const at::Tensor& t) { return t.numel(); });
  if (found == free_.end()) return model::WeightMemory().empty({count}, type);
  at::Tensor out = std::move(*found);
  free_.erase(found);
  return out;
}

void Buffers::give(at::Tensor buffer) noexcept {
  free_.push_back(std::move(buffer));
  if (free_.size() <= kMost) return;
  free_.erase(std::ranges::max_element(free_, {}, [](const at::Tensor& t) { return t.numel(); }));
}

}  // namespace twinkle::parallel
