#include "twinkle/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "twinkle/base/error.h"
#include "twinkle/base/error_for_test.h"

namespace twinkle::data {
namespace {

using Batches = std::vector<std::vector<int64_t>>;

Batches epoch(Loader& loader, int64_t number = 0) {
  Batches out;
  loader.start(number);
  for (auto batch = loader.next(); !batch.empty(); batch = loader.next()) out.push_back(batch);
  return out;
}

TEST(Loader, EveryRowComesOnceAndTheTailObeysMinBatchSize) {
  Loader all(7, {.batch_size = 3});
  EXPECT_EQ(all.num_batches(), 3);
  EXPECT_EQ(epoch(all), (Batches{{0, 1, 2}, {3, 4, 5}, {6}}));
  EXPECT_EQ(all.consumed(), 7);
  Loader full(7, {.batch_size = 3, .min_batch_size = 3});
  EXPECT_EQ(full.num_batches(), 2);
  EXPECT_EQ(epoch(full).size(), 2u);
  EXPECT_EQ(full.consumed(), 6);
  Loader none(0, {.batch_size = 3});
  EXPECT_EQ(none.num_batches(), 0);
  EXPECT_TRUE(epoch(none).empty());
}

TEST(Loader, TheShuffleIsAPermutationKeyedBySeedAndEpochAndTheSameEverywhere) {
  const auto order = shuffled(1000, 1, 0);
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(sorted[i], i);
  EXPECT_EQ(order, shuffled(1000, 1, 0));
  EXPECT_NE(order, shuffled(1000, 1, 1));
  EXPECT_NE(order, shuffled(1000, 2, 0));
  EXPECT_EQ(shuffled(8, 42, 0), (std::vector<int64_t>{5, 2, 4, 0, 7, 6, 3, 1}));
}

TEST(Loader, TheShuffleIsUniform) {
  std::map<std::vector<int64_t>, int> counts;  // draws of each of the 24 orders of four rows
  for (uint64_t seed = 0; seed < 24'000; ++seed) ++counts[shuffled(4, seed, 0)];
  double chi_square = 0;
  for (const auto& [order, count] : counts)
    chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_EQ(counts.size(), 24u);
  EXPECT_LT(chi_square, 49.7);  // 23 degrees of freedom, p = 0.001
}

TEST(Loader, RanksShareABatchWithoutOverlap) {
  for (const int64_t rows : {16, 20, 23}) {
    Loader whole(rows, {.batch_size = 8, .shuffle = true, .seed = 3});
    Batches joined(epoch(whole).size());
    for (int64_t rank = 0; rank < 4; ++rank) {
      Loader part(
          rows,
          {.batch_size = 8, .shuffle = true, .seed = 3, .data_world_size = 4, .data_rank = rank});
      part.start(0);
      for (auto& batch : joined) {
        const auto slice = part.next();
        batch.insert(batch.end(), slice.begin(), slice.end());
      }
    }
    EXPECT_EQ(joined, epoch(whole));
  }
  Loader driver(16, {.batch_size = 8, .data_world_size = 4, .data_rank = 2, .whole_batch = true});
  EXPECT_EQ(epoch(driver)[0].size(), 8u);
}

TEST(Loader, SkippedRowsAreNeverReadAndLenHonoursThem) {
  const LoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 9};
  Loader whole(18, options), resumed(18, options);
  const Batches batches = epoch(whole);
  resumed.skip(8);
  EXPECT_EQ(resumed.num_batches(), 3);
  EXPECT_EQ(epoch(resumed), (Batches{batches[2], batches[3], batches[4]}));
  EXPECT_EQ(resumed.consumed(), 18);
  EXPECT_EQ(resumed.num_batches(), 3);
  epoch(resumed);  // the skip was for one epoch
  EXPECT_EQ(resumed.num_batches(), 5);
  resumed.skip(18 + 4);  // one epoch and a batch
  const Batches second = epoch(whole, 1);
  EXPECT_EQ(epoch(resumed), Batches(second.begin() + 1, second.end()));
}

TEST(Loader, RefusesSizesThatCannotBe) {
  EXPECT_EQ(error_of([] { Loader(4, {.batch_size = 0}); }),
            "data: batch_size is 0, it must be at least 1");
  EXPECT_EQ(error_of([] { Loader(4, {.batch_size = 6, .data_world_size = 4}); }),
            "data: batch_size is 6, it must be divisible by the 4 data ranks of the mesh");
  EXPECT_EQ(error_of([] { Loader(4, {.batch_size = 6, .min_batch_size = 7}); }),
            "data: min_batch_size is 7, it must lie between 1 and the batch_size of 6");
  EXPECT_EQ(
      error_of([] { Loader(4, {.batch_size = 8, .min_batch_size = 3, .data_world_size = 4}); }),
      "data: min_batch_size is 3, it must be at least the 4 data ranks, each of which needs a row");
  EXPECT_EQ(error_of([] { Loader(4, {.data_world_size = 0}); }),
            "data: data_world_size is 0, it must be at least 1");
  EXPECT_EQ(error_of([] { Loader(4, {.data_rank = 1}); }),
            "data: data_rank is 1, it must be below the data_world_size of 1");
  EXPECT_EQ(error_of([] { Loader(4, {}).skip(-1); }),
            "data: consumed samples are -1, they must be at least 0");
}

}  // namespace
}  // namespace twinkle::data
