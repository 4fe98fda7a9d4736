// The pages of a sampler's cache as handles that free themselves, and as names of what a page holds
// that outlive the handles, until the page is taken for something else. Knows only page numbers:
// the memory behind them is the paged cache's. Not thread-safe; the pool outlives its blocks.
#pragma once
#include <cstdint>
#include <optional>
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

// The content of a page when it was kept. Holds no share of it.
struct Kept {
  int32_t page = 0;
  uint64_t taken = 0;  // times that the page had been taken by then
};

class BlockPool {
 public:
  // Room for `num_tokens`, rounded up to whole pages. Error kInvalid: less than one token.
  explicit BlockPool(int64_t num_tokens);
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  int64_t num_pages() const { return static_cast<int64_t>(pages_.size()) - 1; }
  // Pages without a share, kept ones among them.
  int64_t num_free() const { return num_free_; }

  // `count` pages of unknown content: those that are not kept first, the ones freed last before the
  // others, then kept ones, the ones freed first before the others. Error kBusy: not so many are
  // free; none is taken.
  std::vector<Block> take(int64_t count);

  // From here on the page, once it is free, is taken after those that are not kept.
  Kept keep(const Block& block);
  // A share of a kept page; nothing when it was taken, or dropped, since.
  std::optional<Block> revive(const Kept& kept);
  // Undoes keep().
  void drop(const Kept& kept);

 private:
  friend class Block;
  // Free pages form a ring through the last entry of pages_, which is no page.
  struct Page {
    int32_t shares = 0;
    int32_t before = 0, after = 0;
    uint64_t taken = 0;
    bool kept = false;
  };
  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  void free(int32_t page);
  void unlink(int32_t page);
  void link(int32_t page, int32_t after);  // before the page `after` of the ring
  bool same(const Kept& kept) { return at(kept.page).kept && at(kept.page).taken == kept.taken; }

  std::vector<Page> pages_;
  int32_t ring_ = 0;
  int64_t num_free_ = 0;
};

}  // namespace twinkle::sampler
