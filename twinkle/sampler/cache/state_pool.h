// The states of mixers that keep so many bytes of a sequence, whatever its length: a slot for each
// sequence that runs, and snapshots of slots at the ends of pages, from where a sequence that
// begins alike goes on. Knows bytes alone. Memory is handed out as slots are first used. Not
// thread-safe; the pool outlives its slots.
#pragma once
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace twinkle::sampler {

// The layout of a slot: a part for each layer that has a state. A part begins with its closed
// bytes, which are all that counts at the end of a page.
struct StateLayout {
  struct Part {
    int64_t offset = 0, size = 0, closed = 0;  // bytes; size 0: the layer keeps none
  };
  std::vector<Part> layers;
  int64_t size = 0, closed = 0;  // bytes of all parts

  void add(int64_t bytes, int64_t closed_bytes);
  bool empty() const { return size == 0; }
  // Bytes of so many slots and of as many snapshots.
  double num_bytes(int64_t slots) const {
    return static_cast<double>(slots) * static_cast<double>(size + closed);
  }
};

class StatePool {
 public:
  // An empty layout: sequences need no state, and none is kept.
  StatePool(const StateLayout& layout, int64_t num_slots);
  StatePool(const StatePool&) = delete;
  StatePool& operator=(const StatePool&) = delete;

  // A slot that frees itself, or none.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept
        : pool_(std::exchange(other.pool_, nullptr)), index_(other.index_) {}
    Slot& operator=(Slot other) noexcept {
      std::swap(pool_, other.pool_);
      std::swap(index_, other.index_);
      return *this;
    }
    ~Slot();

    explicit operator bool() const { return pool_ != nullptr; }
    std::byte* data() const;  // 64-byte aligned; null: none

   private:
    friend class StatePool;
    Slot(StatePool* pool, size_t index) : pool_(pool), index_(index) {}
    StatePool* pool_ = nullptr;
    size_t index_ = 0;
  };

  // A slot of any content; none when all are taken.
  Slot take();
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  const StateLayout& layout() const { return layout_; }

 private:
  const StateLayout layout_;
  std::unique_ptr<std::byte[]> memory_;
  std::byte* begin_ = nullptr;
  std::vector<size_t> free_;
};

// Copies of slots' closed bytes at the ends of pages, by the pages' ids in the prefix cache. The
// least recently used go first.
class Snapshots {
 public:
  Snapshots(const StateLayout& layout, int64_t most) : layout_(layout), most_(most) {}

  bool contains(uint64_t id) const { return by_id_.contains(id); }
  void keep(uint64_t id, const std::byte* state);
  // Copies a snapshot to the state, whose open bytes stay as they are. `id` must be here.
  void load(uint64_t id, std::byte* state);
  void clear();
  int64_t size() const { return static_cast<int64_t>(by_id_.size()); }

 private:
  struct Snapshot {
    uint64_t id;
    std::unique_ptr<std::byte[]> bytes;
  };
  const StateLayout layout_;
  const int64_t most_;
  std::list<Snapshot> used_;  // the one used last first
  std::unordered_map<uint64_t, std::list<Snapshot>::iterator> by_id_;
};

}  // namespace twinkle::sampler
