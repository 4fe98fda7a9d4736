#include "twinkle/data/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

#include "twinkle/base/error.h"
#include "twinkle/base/error_for_test.h"
#include "twinkle/data/stream_loader.h"

namespace twinkle::data {
namespace {

using Batches = std::vector<std::vector<int64_t>>;

template <class AnyLoader>
Batches rest_of(AnyLoader& loader) {
  Batches out;
  for (auto batch = loader.next(); !batch.empty(); batch = loader.next()) out.push_back(batch);
  return out;
}

Batches epoch(Loader& loader, int64_t number = 0) {
  loader.start(number);
  return rest_of(loader);
}

using Stream = StreamLoader<int64_t>;

Batches epoch(Stream& loader) {
  loader.start();
  return rest_of(loader);
}

// The rows 0 .. length-1. The `fails`-th that is read in all is an error instead.
std::function<Stream::Reader()> counting(int64_t length, int64_t fails = -1) {
  return [length, left = std::make_shared<int64_t>(fails)]() -> Stream::Reader {
    return [length, left, next = int64_t{0}]() mutable -> std::optional<int64_t> {
      require((*left)-- != 0, Code::kInvalid, "no network");
      if (next == length) return std::nullopt;
      return next++;
    };
  };
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
            "data: batch_size is 6, it must be divisible by the 4 data ranks");
  EXPECT_EQ(error_of([] { Loader(4, {.batch_size = 6, .min_batch_size = 7}); }),
            "data: min_batch_size is 7, it must lie between 1 and the batch_size of 6");
  EXPECT_EQ(
      error_of([] { Loader(4, {.batch_size = 8, .min_batch_size = 3, .data_world_size = 4}); }),
      "data: min_batch_size is 3, it must be at least the 4 data ranks, each of which needs a row");
  EXPECT_EQ(
      error_of([] {
        Loader(4,
               {.batch_size = 4, .min_batch_size = 1, .data_world_size = 2, .whole_batch = true});
      }),
      "data: min_batch_size is 1, it must be at least the 2 data ranks, each of which needs a row");
  EXPECT_EQ(error_of([] { Loader(4, {.data_world_size = 0}); }),
            "data: data_world_size is 0, it must be at least 1");
  EXPECT_EQ(error_of([] { Loader(4, {.data_rank = 1}); }),
            "data: data_rank is 1, it must be below the data_world_size of 1");
  EXPECT_EQ(error_of([] { Loader(4, {}).skip(-1); }),
            "data: consumed samples are -1, they must be at least 0");
}

TEST(Loader, RemarksOnRowsThatNobodyAskedToLeaveOut) {
  const LoaderOptions four{.batch_size = 8, .data_world_size = 4};
  EXPECT_EQ(Loader(11, four).remark(),
            "3 rows at the end of each epoch are left out, which one process would read: each of 4 "
            "data ranks needs a row of every batch; choose a batch_size, now 8, that leaves none "
            "or 4 and more");
  EXPECT_EQ(Loader(12, four).remark(), "");
  EXPECT_EQ(Loader(16, four).remark(), "");
  EXPECT_EQ(Loader(11, {.batch_size = 8, .min_batch_size = 4, .data_world_size = 4}).remark(), "");
  EXPECT_EQ(Loader(3, four).remark(),
            "3 rows make no batch of at least 4: a loop over this loader does nothing");
}

TEST(StreamLoader, GivesTheBatchesOfAnIndexAlsoBehindSkippedRows) {
  for (const int64_t length : {1, 3, 4, 8, 9, 10, 11})
    for (const LoaderOptions& options :
         {LoaderOptions{.batch_size = 4}, LoaderOptions{.batch_size = 4, .min_batch_size = 2},
          LoaderOptions{.batch_size = 4, .min_batch_size = 4},
          LoaderOptions{.batch_size = 4, .data_world_size = 2, .data_rank = 1},
          LoaderOptions{.batch_size = 4, .data_world_size = 4, .data_rank = 2},
          LoaderOptions{.batch_size = 4, .data_world_size = 2, .whole_batch = true}}) {
      if (Loader(length, options).num_batches() == 0) continue;
      for (int64_t skipped = 0; skipped < 30; ++skipped) {
        Loader indexed(length, options);
        Stream stream(counting(length), options);
        indexed.skip(skipped);
        stream.skip(skipped);
        for (int64_t number = 0; number < 2; ++number) {
          EXPECT_EQ(epoch(stream), epoch(indexed, number)) << length << " rows, " << skipped;
          EXPECT_EQ(stream.consumed(), indexed.consumed());
        }
        EXPECT_EQ(stream.remark(), indexed.remark());
      }
    }
}

TEST(StreamLoader, AnErrorWhileRowsAreSkippedLeavesThemToTheNextEpoch) {
  Stream stream(counting(6, 1), {.batch_size = 2});
  stream.skip(4);
  EXPECT_EQ(error_of([&] { stream.start(); }), "no network");
  EXPECT_EQ(epoch(stream), (Batches{{4, 5}}));
  EXPECT_EQ(epoch(stream).size(), 3u);
}

TEST(StreamLoader, RefusesAnEpochWithoutRowsAndSkipsNoneOfNone) {
  Stream none(counting(0), {.batch_size = 2});
  Stream small(counting(3), {.batch_size = 4, .min_batch_size = 4});
  EXPECT_EQ(error_of([&] { epoch(none); }), kNoRows);
  EXPECT_TRUE(epoch(small).empty());
  for (Stream* stream : {&none, &small}) {
    stream->skip(1);
    EXPECT_EQ(error_of([&] { stream->start(); }),
              "data: the dataset has no rows, so none can be skipped: leave the skip out, or lower "
              "min_batch_size");
  }
  EXPECT_EQ(error_of([] { Stream(counting(1), {.batch_size = 0}); }),
            "data: batch_size is 0, it must be at least 1");
}

}  // namespace
}  // namespace twinkle::data
