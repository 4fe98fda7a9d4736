#include "twinkle/sampler/cache/prefix_cache.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace twinkle::sampler {
namespace {

std::vector<int32_t> page_of(int32_t token) {
  return std::vector<int32_t>(static_cast<size_t>(kPageTokens), token);
}

// The page that is known for these tokens, -1: none.
int32_t page_at(PrefixCache& cache, uint64_t version, uint64_t parent, int32_t token) {
  const auto found = cache.find(version, parent, page_of(token));
  return found ? found->block.page() : -1;
}

TEST(PrefixCache, FindsAPageByVersionPagesBeforeAndTokens) {
  BlockPool pool(8 * kPageTokens);
  PrefixCache cache(pool);
  std::vector<Block> blocks = pool.take(3);
  const auto first = cache.insert(7, 0, page_of(1), blocks[0]);
  const auto second = cache.insert(7, first.id, page_of(2), blocks[1]);
  const auto other = cache.insert(8, 0, page_of(1), blocks[2]);
  EXPECT_EQ(page_at(cache, 7, 0, 1), blocks[0].page());
  EXPECT_EQ(page_at(cache, 7, first.id, 2), blocks[1].page());
  EXPECT_EQ(page_at(cache, 8, 0, 1), blocks[2].page());
  EXPECT_EQ(page_at(cache, 7, 0, 2), -1);  // these tokens, but not as a beginning
  EXPECT_EQ(page_at(cache, 7, second.id, 2), -1);
  EXPECT_EQ(page_at(cache, 8, other.id, 2), -1);  // the same beginning of other weights
  EXPECT_EQ(page_at(cache, 9, 0, 1), -1);
}

// The map asks this of keys whose hashes are equal.
TEST(PrefixCache, KeysDifferByEachOfVersionParentAndTokens) {
  PageKey key{7, 1, {}};
  key.tokens[0] = 3;
  PageKey version = key, parent = key, first = key, last = key;
  version.version = 8;
  parent.parent = 2;
  first.tokens[0] = 4;
  last.tokens[kPageTokens - 1] = 5;
  for (const PageKey& other : {version, parent, first, last}) EXPECT_FALSE(key == other);
  EXPECT_TRUE(key == PageKey(key));
}

TEST(PrefixCache, EqualHashesOfDifferentTokensDoNotMatch) {
  BlockPool pool(8 * kPageTokens);
  PrefixCache cache(pool);
  // Another first token, and a parent that makes up for it.
  std::vector<int32_t> tokens = page_of(1), others = page_of(1);
  others[0] = 2;
  const uint64_t of_version = 7 * 0x9e3779b97f4a7c15;
  const uint64_t parent = (of_version ^ 1 ^ 2) - of_version;
  PageKey one{7, 0, {}}, two{7, parent, {}};
  std::ranges::copy(tokens, one.tokens.begin());
  std::ranges::copy(others, two.tokens.begin());
  ASSERT_EQ(HashOfPage()(one), HashOfPage()(two));
  std::vector<Block> blocks = pool.take(2);
  cache.insert(7, 0, tokens, blocks[0]);
  EXPECT_FALSE(cache.find(7, parent, others));
  cache.insert(7, parent, others, blocks[1]);
  EXPECT_EQ(cache.find(7, 0, tokens)->block.page(), blocks[0].page());
  EXPECT_EQ(cache.find(7, parent, others)->block.page(), blocks[1].page());
}

TEST(PrefixCache, TheSameTokensFromASecondPageGiveTheFirst) {
  BlockPool pool(8 * kPageTokens);
  PrefixCache cache(pool);
  std::vector<Block> blocks = pool.take(2);
  const auto first = cache.insert(7, 0, page_of(1), blocks[0]);
  const auto again = cache.insert(7, 0, page_of(1), blocks[1]);
  EXPECT_EQ(again.id, first.id);
  EXPECT_EQ(again.block.page(), blocks[0].page());
}

TEST(PrefixCache, AFreePageIsKnownUntilItIsTakenTheOneFreedFirstBeforeTheOthers) {
  BlockPool pool(3 * kPageTokens);
  PrefixCache cache(pool);
  uint64_t parent = 0;
  {
    std::vector<Block> blocks = pool.take(3);
    for (int32_t i = 0; i < 3; ++i) {
      parent = cache.insert(7, parent, page_of(i), blocks[static_cast<size_t>(i)]).id;
    }
    while (!blocks.empty()) blocks.pop_back();  // the end of the text first
  }
  EXPECT_EQ(pool.num_free(), 3);
  const std::vector<Block> taken = pool.take(1);
  const auto first = cache.find(7, 0, page_of(0));
  ASSERT_TRUE(first);
  const auto second = cache.find(7, first->id, page_of(1));
  ASSERT_TRUE(second);
  EXPECT_EQ(page_at(cache, 7, second->id, 2), -1);
  EXPECT_EQ(pool.num_free(), 0);  // a page that is found is held
}

TEST(PrefixCache, APageThatIsTakenCanBeMadeKnownForOtherTokensAndForTheSame) {
  BlockPool pool(kPageTokens);
  PrefixCache cache(pool);
  const uint64_t before = cache.insert(7, 0, page_of(1), pool.take(1)[0]).id;
  {
    std::vector<Block> blocks = pool.take(1);
    EXPECT_EQ(page_at(cache, 7, 0, 1), -1);
    cache.insert(7, 0, page_of(2), blocks[0]);
    EXPECT_EQ(page_at(cache, 7, 0, 1), -1);
    EXPECT_EQ(page_at(cache, 7, 0, 2), 0);
  }
  const auto again = cache.insert(7, 0, page_of(1), pool.take(1)[0]);
  EXPECT_NE(again.id, before);  // successors of the page that is gone do not follow this one
  EXPECT_EQ(page_at(cache, 7, 0, 1), 0);
  EXPECT_EQ(page_at(cache, 7, 0, 2), -1);
}

TEST(PrefixCache, ForgetsEverythingWhenCleared) {
  BlockPool pool(4 * kPageTokens);
  PrefixCache cache(pool);
  const std::vector<Block> blocks = pool.take(1);
  const uint64_t parent = cache.insert(7, 0, page_of(1), blocks[0]).id;
  cache.insert(7, parent, page_of(2), pool.take(1)[0]);
  cache.clear();
  EXPECT_EQ(page_at(cache, 7, 0, 1), -1);
  EXPECT_EQ(page_at(cache, 7, parent, 2), -1);
  EXPECT_EQ(pool.num_free(), 3);
  EXPECT_EQ(pool.take(3).size(), 3u);
}

}  // namespace
}  // namespace twinkle::sampler
