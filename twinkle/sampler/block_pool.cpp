#include "twinkle/sampler/block_pool.h"

#include "twinkle/base/error.h"

namespace twinkle::sampler {

Block::Block(const Block& other) : pool_(other.pool_), page_(other.page_) {
  if (pool_) ++pool_->shares_[static_cast<size_t>(page_)];
}

Block::~Block() {
  if (pool_ && --pool_->shares_[static_cast<size_t>(page_)] == 0) pool_->free_.push_back(page_);
}

bool Block::shared() const { return pool_->shares_[static_cast<size_t>(page_)] > 1; }

BlockPool::BlockPool(int64_t num_tokens) {
  require(num_tokens >= 1 && pages_for(num_tokens) <= INT32_MAX, Code::kInvalid,
          "sampler: kv_tokens is ", num_tokens, ", it must be from 1 to ", INT32_MAX * kPageTokens);
  const auto pages = static_cast<size_t>(pages_for(num_tokens));
  shares_.assign(pages, 0);
  free_.reserve(pages);  // so that freeing a block allocates nothing
  for (size_t i = pages; i > 0; --i) free_.push_back(static_cast<int32_t>(i - 1));
}

std::vector<Block> BlockPool::take(int64_t count) {
  require(count <= num_free(), Code::kBusy, "sampler: ", count, " pages of ", kPageTokens,
          " tokens are needed, ", num_free(), " of the cache's ", num_pages(), " are free");
  std::vector<Block> blocks;
  blocks.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const int32_t page = free_.back();
    free_.pop_back();
    shares_[static_cast<size_t>(page)] = 1;
    blocks.push_back(Block(this, page));
  }
  return blocks;
}

}  // namespace twinkle::sampler
