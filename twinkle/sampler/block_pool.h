// The pages of a sampler's cache as handles that free themselves. Knows only page numbers: the
// memory behind them is the paged cache's. Not thread-safe; the pool outlives its blocks.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

namespace twinkle::sampler {

inline constexpr int64_t kPageTokens = 64;  // tokens of one page: the tile of paged attention

inline int64_t pages_for(int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }

class BlockPool;

// A share of one page. Copying shares the page; the last share to go frees it.
class Block {
 public:
  Block(const Block& other);
  Block(Block&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), page_(other.page_) {}
  Block& operator=(Block other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(page_, other.page_);
    return *this;
  }
  ~Block();

  int32_t page() const { return page_; }
  bool shared() const;

 private:
  friend class BlockPool;
  Block(BlockPool* pool, int32_t page) : pool_(pool), page_(page) {}

  BlockPool* pool_;  // nullptr: moved from
  int32_t page_;
};

class BlockPool {
 public:
  // Room for `num_tokens`, rounded up to whole pages. Error kInvalid: less than one token.
  explicit BlockPool(int64_t num_tokens);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int64_t num_pages() const { return static_cast<int64_t>(shares_.size()); }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }

  // `count` pages of unknown content, the ones freed last first. Error kBusy: not so many are free;
  // none is taken.
  std::vector<Block> take(int64_t count);

 private:
  friend class Block;
  std::vector<int32_t> shares_;  // by page
  std::vector<int32_t> free_;
};

}  // namespace twinkle::sampler
