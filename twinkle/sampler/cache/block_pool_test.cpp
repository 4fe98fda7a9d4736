#include "twinkle/sampler/cache/block_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "twinkle/base/error_for_test.h"

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

TEST(BlockPool, KeptPagesAreTakenLastTheOneFreedFirstBeforeTheOthers) {
  BlockPool pool(4 * kPageTokens);
  std::vector<Block> blocks = pool.take(3);
  const int32_t a = blocks[0].page(), b = blocks[1].page(), plain = blocks[2].page();
  const Kept kept_a = pool.keep(blocks[0]), kept_b = pool.keep(blocks[1]);
  blocks.erase(blocks.begin() + 1);  // b
  blocks.erase(blocks.begin());      // a
  blocks.clear();
  EXPECT_EQ(pool.num_free(), 4);
  std::vector<Block> taken = pool.take(3);
  EXPECT_EQ(taken[0].page(), plain);
  EXPECT_EQ(taken[2].page(), b);
  EXPECT_FALSE(pool.revive(kept_b));
  const std::optional<Block> again = pool.revive(kept_a);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->page(), a);
  EXPECT_EQ(pool.num_free(), 0);
}

TEST(BlockPool, ADroppedPageIsLikeOneThatWasNeverKept) {
  BlockPool pool(2 * kPageTokens);
  std::vector<Block> blocks = pool.take(2);
  const Kept first = pool.keep(blocks[0]), second = pool.keep(blocks[1]);
  blocks.clear();
  pool.drop(second);
  EXPECT_FALSE(pool.revive(second));
  EXPECT_EQ(pool.take(1)[0].page(), second.page);
  std::optional<Block> held = pool.revive(first);
  pool.drop(first);
  EXPECT_FALSE(pool.revive(first));
  held.reset();
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockPool, RefusesACacheOfNoTokens) {
  EXPECT_EQ(error_of([] { BlockPool pool(0); }),
            "sampler: kv_tokens is 0, it must be from 1 to 137438953408");
}

}  // namespace
}  // namespace twinkle::sampler
