// The adapters of all owners on one decoder: ragged ranks, one slot each, held by counted handles.
// Implements the linears' seam: every sequence of a batch gets the delta of its owner's slot. Rank
// r costs r. Used by the decoder's thread alone.
#pragma once
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "twinkle/lora/adapter.h"
#include "twinkle/model/decoder.h"
#include "twinkle/nn/linear.h"

namespace twinkle::lora {

class Pool;

// A share of one slot. Copying shares the slot; the last share to go frees it, with its adapter.
// Weights that others share do not change: Pool::copy_on_write() comes before a change.
class AdapterRef {
 public:
  AdapterRef() = default;  // refers to no slot
  AdapterRef(const AdapterRef& other);
  AdapterRef(AdapterRef&& other) noexcept
      : pool_(std::exchange(other.pool_, nullptr)), slot_(std::exchange(other.slot_, -1)) {}
  AdapterRef& operator=(AdapterRef other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~AdapterRef();

  int32_t slot() const { return slot_; }  // -1: none
  // Version of the weights in the slot: a new number after every change.
  uint64_t version() const;
  int64_t num_shares() const;  // shares of the slot

 private:
  friend class Pool;
  AdapterRef(Pool* pool, int32_t slot) : pool_(pool), slot_(slot) {}

  Pool* pool_ = nullptr;
  int32_t slot_ = -1;
};

class Pool {
 public:
  explicit Pool(model::Decoder& decoder);  // the decoder must outlive the pool, the pool its pins
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  // Takes the lowest free slot.
  AdapterRef add(std::unique_ptr<Adapter> adapter);
  Adapter& at(int32_t slot);         // Error kInternal: the slot is free
  Adapter* find(int32_t slot);       // or nullptr: the slot is free
  bool on_head(int32_t slot) const;  // true: its adapter targets the decoder's head

  // Makes `pin` the only share of its slot. Where there are others, they keep the slot as it is,
  // and the pin moves to a fresh one with a copy of the weights; the gradients move with it.
  void copy_on_write(AdapterRef& pin);
  // To be called after a change of the weights in a slot: a new version.
  void weights_changed(const AdapterRef& pin);

  // The version of the base model's weights, and what must be called after they change.
  uint64_t base_version() const { return base_version_; }
  void base_changed();

  const std::vector<model::NamedLinear>& linears() const { return linears_; }

 private:
  friend class AdapterRef;
  class LoraDelta;
  struct Slot {
    std::unique_ptr<Adapter> adapter;  // none: the slot is free
    int64_t num_shares = 0;
    uint64_t version = 0;
  };
  AdapterRef put(std::unique_ptr<Adapter> adapter, uint64_t version);
  void make_room();  // for one adapter more
  void release(int32_t slot);
  // A linear that no adapter targets keeps no seam, and costs nothing. `change`: of the number of
  // adapters like this one.
  void attach(const Adapter& adapter, int64_t change);

  std::vector<model::NamedLinear> linears_;
  std::optional<size_t> head_;                      // its linear
  std::vector<std::unique_ptr<LoraDelta>> deltas_;  // one per linear
  std::vector<int64_t> num_adapters_;               // that target it, per linear
  int64_t num_dora_ = 0;                            // adapters with magnitudes
  std::vector<Slot> slots_;
  std::vector<int32_t> free_;  // indices in slots_, a heap: the lowest first
  uint64_t base_version_ = 1, last_version_ = 1;
};

}  // namespace twinkle::lora
