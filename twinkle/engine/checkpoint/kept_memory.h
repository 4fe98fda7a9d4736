// Host memory for the copies that Saves write from. Blocks that were given back are kept for the
// next Save, so that its copy does not wait for new pages of the system. One thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

namespace twinkle::engine {

class KeptMemory {
 public:
  // Bytes of blocks that are kept while nobody uses them; beyond them those that waited longest go.
  explicit KeptMemory(int64_t max_kept) : max_kept_(max_kept) {}
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  // At least so many bytes, at an address of a multiple of 64; given back with the last copy. Must
  // not outlive this. Error std::bad_alloc.
  std::shared_ptr<std::byte> take(int64_t bytes);

  int64_t num_kept() const { return num_kept_; }  // bytes
  int64_t num_used() const { return num_used_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const noexcept;
  };
  struct Block {
    std::unique_ptr<std::byte, Free> memory;
    int64_t size = 0;
  };
  void give_back(Block block) noexcept;

  const int64_t max_kept_;
  std::deque<Block> kept_;  // the one that waited longest first
  int64_t num_kept_ = 0, num_used_ = 0;
};

}  // namespace twinkle::engine
