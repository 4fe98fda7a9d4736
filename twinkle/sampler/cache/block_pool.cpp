#include "twinkle/sampler/cache/block_pool.h"

#include "twinkle/base/error.h"

namespace twinkle::sampler {

Block::Block(const Block& other) : pool_(other.pool_), page_(other.page_) {
  if (pool_) ++pool_->at(page_).shares;
}

Block::~Block() {
  if (pool_ && --pool_->at(page_).shares == 0) pool_->free(page_);
}

bool Block::shared() const { return pool_->at(page_).shares > 1; }

BlockPool::BlockPool(int64_t num_tokens) {
  require(num_tokens >= 1 && pages_for(num_tokens) <= INT32_MAX, Code::kInvalid,
          "sampler: kv_tokens is ", num_tokens, ", it must be from 1 to ", INT32_MAX * kPageTokens);
  ring_ = static_cast<int32_t>(pages_for(num_tokens));
  pages_.resize(static_cast<size_t>(ring_) + 1);
  at(ring_).before = at(ring_).after = ring_;
  for (int32_t page = 0; page < ring_; ++page) link(page, ring_);
}

void BlockPool::link(int32_t page, int32_t after) {
  const int32_t before = at(after).before;
  at(page).before = before;
  at(page).after = after;
  at(before).after = at(after).before = page;
  ++num_free_;
}

void BlockPool::unlink(int32_t page) {
  at(at(page).before).after = at(page).after;
  at(at(page).after).before = at(page).before;
  --num_free_;
}

void BlockPool::free(int32_t page) { link(page, at(page).kept ? ring_ : at(ring_).after); }

std::vector<Block> BlockPool::take(int64_t count) {
  require(count <= num_free(), Code::kBusy, "sampler: ", count, " pages of ", kPageTokens,
          " tokens are needed, ", num_free(), " of the cache's ", num_pages(), " are free");
  std::vector<Block> blocks;
  blocks.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int32_t page = at(ring_).after;
    unlink(page);
    at(page).kept = false;
    ++at(page).taken;
    at(page).shares = 1;
    blocks.push_back(Block(this, page));
  }
  return blocks;
}

Kept BlockPool::keep(const Block& block) {
  at(block.page()).kept = true;
  return {block.page(), at(block.page()).taken};
}

std::optional<Block> BlockPool::revive(const Kept& kept) {
  if (!same(kept)) return std::nullopt;
  if (at(kept.page).shares++ == 0) unlink(kept.page);
  return Block(this, kept.page);
}

void BlockPool::drop(const Kept& kept) {
  if (!same(kept)) return;
  at(kept.page).kept = false;
  if (at(kept.page).shares > 0) return;
  unlink(kept.page);
  free(kept.page);
}

}  // namespace twinkle::sampler
