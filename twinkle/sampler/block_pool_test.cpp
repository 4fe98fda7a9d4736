#include "twinkle/sampler/block_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "twinkle/io/scratch_dir.h"

namespace twinkle::sampler {
namespace {

TEST(BlockPool, RoundsUpToWholePagesAndHandsEachOutOnce) {
  BlockPool pool(3 * kPageTokens + 1);
  EXPECT_EQ(pool.num_pages(), 4);
  const std::vector<Block> blocks = pool.take(4);
  std::set<int32_t> pages;
  for (const Block& block : blocks) pages.insert(block.page());
  EXPECT_EQ(pages, (std::set<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(BlockPool, ABlockFreesItsPageWithItsLastShare) {
  BlockPool pool(2 * kPageTokens);
  std::vector<Block> first = pool.take(1);
  EXPECT_FALSE(first[0].shared());
  {
    const std::vector<Block> second = first;
    EXPECT_EQ(second[0].page(), first[0].page());
    EXPECT_TRUE(first[0].shared());
    first.clear();
    EXPECT_EQ(pool.num_free(), 1);
    EXPECT_FALSE(second[0].shared());
  }
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockPool, AssigningABlockFreesTheOneItReplaces) {
  BlockPool pool(2 * kPageTokens);
  std::vector<Block> blocks = pool.take(1);
  blocks[0] = std::move(pool.take(1)[0]);
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPool, WhenExhaustedSaysBusyWithNeedAndLimitAndTakesNothing) {
  BlockPool pool(3 * kPageTokens);
  const std::vector<Block> held = pool.take(1);
  try {
    pool.take(3);
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kBusy);
    EXPECT_STREQ(e.what(), "sampler: 3 pages of 64 tokens are needed, 2 of the cache's 3 are free");
  }
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockPool, RefusesACacheOfNoTokens) {
  EXPECT_EQ(error_of([] { BlockPool pool(0); }),
            "sampler: kv_tokens is 0, it must be from 1 to 137438953408");
}

}  // namespace
}  // namespace twinkle::sampler
