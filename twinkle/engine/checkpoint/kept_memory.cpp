#include "twinkle/engine/checkpoint/kept_memory.h"

#include <algorithm>
#include <new>
#include <utility>

namespace twinkle::engine {
namespace {

constexpr std::align_val_t kAlign{64};

}  // namespace

void KeptMemory::Free::operator()(std::byte* memory) const noexcept {
  ::operator delete(memory, kAlign);
}

std::shared_ptr<std::byte> KeptMemory::take(int64_t bytes) {
  // The smallest that fits; one that is far too large is left to others.
  auto best = kept_.end();
  for (auto it = kept_.begin(); it != kept_.end(); ++it) {
    if (it->size < bytes || it->size / 4 > bytes) continue;
    if (best == kept_.end() || it->size < best->size) best = it;
  }
  const auto held = std::make_shared<Block>();
  if (best != kept_.end()) {
    *held = std::move(*best);
    kept_.erase(best);
    num_kept_ -= held->size;
  } else {
    held->memory.reset(static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), kAlign)));
    held->size = bytes;
  }
  num_used_ += held->size;
  return {held->memory.get(), [this, held](std::byte*) { give_back(std::move(*held)); }};
}

void KeptMemory::give_back(Block block) noexcept {
  num_used_ -= block.size;
  if (block.size > max_kept_) return;
  while (num_kept_ + block.size > max_kept_) {
    num_kept_ -= kept_.front().size;
    kept_.pop_front();
  }
  try {
    num_kept_ += block.size;
    kept_.push_back(std::move(block));
  } catch (const std::bad_alloc&) {
    num_kept_ -= block.size;
  }
}

}  // namespace twinkle::engine
