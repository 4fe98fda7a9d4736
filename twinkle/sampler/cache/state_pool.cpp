#include "twinkle/sampler/cache/state_pool.h"

#include <cstring>

namespace twinkle::sampler {
namespace {

constexpr int64_t kAlignment = 64;
int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

void copy(const std::byte* from, int64_t count, std::byte* to) {
  std::memcpy(to, from, static_cast<size_t>(count));
}

}  // namespace

void StateLayout::add(int64_t bytes, int64_t closed_bytes) {
  layers.push_back({size, bytes, closed_bytes});
  size += aligned(bytes);
  closed += closed_bytes;
}

StatePool::StatePool(const StateLayout& layout, int64_t num_slots) : layout_(layout) {
  if (layout.empty()) return;
  const auto count = static_cast<size_t>(num_slots);
  memory_ = std::make_unique_for_overwrite<std::byte[]>(count * static_cast<size_t>(layout.size) +
                                                        static_cast<size_t>(kAlignment));
  const auto address = reinterpret_cast<uintptr_t>(memory_.get());
  begin_ = memory_.get() + (aligned(static_cast<int64_t>(address)) - static_cast<int64_t>(address));
  for (size_t i = count; i > 0; --i) free_.push_back(i - 1);
}

StatePool::Slot::~Slot() {
  if (pool_ != nullptr) pool_->free_.push_back(index_);
}

std::byte* StatePool::Slot::data() const {
  if (pool_ == nullptr) return nullptr;
  return pool_->begin_ + index_ * static_cast<size_t>(pool_->layout_.size);
}

StatePool::Slot StatePool::take() {
  if (free_.empty()) return {};
  const size_t index = free_.back();
  free_.pop_back();
  return {this, index};
}

void Snapshots::keep(uint64_t id, const std::byte* state) {
  if (most_ == 0 || contains(id)) return;
  Snapshot made{id, nullptr};
  if (size() == most_) {
    by_id_.erase(used_.back().id);
    made.bytes = std::move(used_.back().bytes);
    used_.pop_back();
  } else {
    made.bytes = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(layout_.closed));
  }
  std::byte* to = made.bytes.get();
  for (const auto& [offset, bytes, closed] : layout_.layers) {
    copy(state + offset, closed, to);
    to += closed;
  }
  used_.push_front(std::move(made));
  by_id_[id] = used_.begin();
}

void Snapshots::load(uint64_t id, std::byte* state) {
  const auto it = by_id_.at(id);
  used_.splice(used_.begin(), used_, it);
  const std::byte* from = it->bytes.get();
  for (const auto& [offset, bytes, closed] : layout_.layers) {
    copy(from, closed, state + offset);
    from += closed;
  }
}

void Snapshots::clear() {
  by_id_.clear();
  used_.clear();
}

}  // namespace twinkle::sampler
