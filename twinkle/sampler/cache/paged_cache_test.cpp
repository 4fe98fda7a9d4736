#include "twinkle/sampler/cache/paged_cache.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/kernels/allocation_meter_for_test.h"
#include "twinkle/nn/attention/attention.h"

namespace twinkle::sampler {
namespace {

std::vector<model::StateSpec> two_layers() { return {{2, 16}, {2, 16}}; }

struct Tokens {
  at::Tensor q, k, v;
  explicit Tokens(int64_t count)
      : q(at::randn({count, 4, 16})), k(at::randn({count, 2, 16})), v(at::randn({count, 2, 16})) {}
  at::Tensor attend(PagedCache& cache, size_t layer, int64_t begin, int64_t end) const {
    return cache.attend(layer, q.slice(0, begin, end), k.slice(0, begin, end),
                        v.slice(0, begin, end), {}, {.scale = 0.25});
  }
};

TEST(PagedCache, PiecesOfASequenceAttendAsTheWholeDoesInEachLayer) {
  PagedCache cache(two_layers(), at::kFloat, at::kCPU, 8);
  BlockPool pool(8 * kPageTokens);
  const std::vector<Block> hole = pool.take(1), blocks = pool.take(3);
  const Tokens first(150), second(150);
  at::Tensor got_first = at::empty({0, 4, 16}), got_second = got_first;
  int64_t begin = 0;
  for (const int64_t end : {1, 64, 70, 149, 150}) {
    cache.start({{&blocks, begin, end}});
    got_first = at::cat({got_first, first.attend(cache, 0, begin, end)});
    got_second = at::cat({got_second, second.attend(cache, 1, begin, end)});
    begin = end;
  }
  const int64_t lengths[] = {150};
  const auto whole = [&](const Tokens& t) {
    return nn::attention(t.q, t.k, t.v, nn::pack(lengths), {.scale = 0.25});
  };
  EXPECT_TRUE(at::equal(got_first, whole(first)));
  EXPECT_TRUE(at::equal(got_second, whole(second)));
}

TEST(PagedCache, EveryLayerHasPagesOfItsOwnShape) {
  const std::vector<model::StateSpec> states{{2, 16}, {1, 8}};
  PagedCache cache(states, at::kFloat, at::kCPU, 1);
  BlockPool pool(kPageTokens);
  const std::vector<Block> blocks = pool.take(1);
  cache.start({{&blocks, 0, 5}});
  const int64_t lengths[] = {5};
  for (size_t layer = 0; layer < states.size(); ++layer) {
    const int64_t heads = states[layer].num_heads, dim = states[layer].head_dim;
    const at::Tensor q = at::randn({5, 4, dim}), k = at::randn({5, heads, dim}),
                     v = at::randn({5, heads, dim});
    EXPECT_TRUE(at::equal(cache.attend(layer, q, k, v, {}, {.scale = 0.25}),
                          nn::attention(q, k, v, nn::pack(lengths), {.scale = 0.25})));
  }
}

TEST(PagedCache, ALatentLayerKeepsItsKeysOnce) {
  const std::vector<model::StateSpec> states{{.num_heads = 1, .head_dim = 24, .latent = true}};
  const kernels::AllocationMeter meter;
  PagedCache cache(states, at::kFloat, at::kCPU, 3);
  EXPECT_EQ(PagedCache::num_bytes(states, at::kFloat, 3), 3 * kPageTokens * 24 * 4);
  EXPECT_EQ(meter.now(), 3 * kPageTokens * 24 * 4);
  BlockPool pool(3 * kPageTokens);
  const std::vector<Block> blocks = pool.take(2), other = pool.take(1);
  const at::Tensor q = at::randn({70, 4, 24}), k = at::randn({70, 1, 24});
  const int64_t lengths[] = {70};
  const at::Tensor want = nn::attention(q, k, k, nn::pack(lengths), {.scale = 0.25});
  int64_t begin = 0;
  for (const int64_t end : {60, 66, 70}) {
    if (begin == 60) cache.copy_page(blocks[0].page(), other[0].page());
    cache.start({{&blocks, begin, end}});
    const at::Tensor keys = k.slice(0, begin, end),
                     got = cache.attend(0, q.slice(0, begin, end), keys, keys, {}, {.scale = 0.25});
    EXPECT_TRUE(at::equal(got, want.slice(0, begin, end))) << end;
    begin = end;
  }
  cache.start({{&other, 60, 64}});  // goes on from the copy
  const at::Tensor keys = k.slice(0, 60, 64);
  EXPECT_TRUE(at::equal(cache.attend(0, q.slice(0, 60, 64), keys, keys, {}, {.scale = 0.25}),
                        want.slice(0, 60, 64)));
}

TEST(PagedCache, ItsBytesAreThoseThatAreAllocated) {
  const std::vector<model::StateSpec> states{{2, 16}, {1, 8}};
  const kernels::AllocationMeter meter;
  const PagedCache cache(states, at::kBFloat16, at::kCPU, 3);
  EXPECT_EQ(PagedCache::num_bytes(states, at::kBFloat16, 3), meter.now());
}

TEST(PagedCache, ACopiedPageServesASequenceThatGoesOnItsOwnWay) {
  PagedCache cache(two_layers(), at::kFloat, at::kCPU, 4);
  BlockPool pool(4 * kPageTokens);
  const std::vector<Block> a = pool.take(1), b = pool.take(1);
  const Tokens one(40);
  const Tokens other(40);
  for (const at::Tensor* t : {&other.q, &other.k, &other.v}) {
    const at::Tensor& from = t == &other.q ? one.q : t == &other.k ? one.k : one.v;
    t->slice(0, 0, 30).copy_(from.slice(0, 0, 30));
  }
  cache.start({{&a, 0, 30}});
  for (const size_t layer : {0, 1}) one.attend(cache, layer, 0, 30);
  cache.copy_page(a[0].page(), b[0].page());
  const int64_t lengths[] = {40};
  for (const size_t layer : {0, 1}) {
    for (const Tokens* t : {&one, &other}) {
      cache.start({{t == &one ? &a : &b, 30, 40}});
      const at::Tensor got = t->attend(cache, layer, 30, 40);
      const at::Tensor want = nn::attention(t->q, t->k, t->v, nn::pack(lengths), {.scale = 0.25});
      EXPECT_TRUE(at::equal(got, want.slice(0, 30)));
    }
  }
}

TEST(PagedCache, RowsBehindTheChunksArePaddingThatLeavesNoTrace) {
  PagedCache cache(two_layers(), at::kFloat, at::kCPU, 1);
  BlockPool pool(kPageTokens);
  const std::vector<Block> blocks = pool.take(1);
  const Tokens tokens(5);
  cache.start({{&blocks, 0, 3}});
  const at::Tensor got = tokens.attend(cache, 0, 0, 5);
  const int64_t lengths[] = {3, 2};
  const at::Tensor want =
      nn::attention(tokens.q, tokens.k, tokens.v, nn::pack(lengths), {.scale = 0.25});
  EXPECT_TRUE(at::equal(got.slice(0, 0, 3), want.slice(0, 0, 3)));
  EXPECT_TRUE(at::equal(got.slice(0, 3), at::zeros({2, 4, 16})));
  cache.start({{&blocks, 3, 5}});
  const int64_t whole[] = {5};
  EXPECT_TRUE(at::equal(
      tokens.attend(cache, 0, 3, 5),
      nn::attention(tokens.q, tokens.k, tokens.v, nn::pack(whole), {.scale = 0.25}).slice(0, 3)));
}

}  // namespace
}  // namespace twinkle::sampler
