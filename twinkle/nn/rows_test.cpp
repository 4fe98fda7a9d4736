#include "twinkle/nn/rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error.h"

namespace twinkle::nn {
namespace {

TEST(Rows, positions_start_anew_in_each_sequence) {
  const Rows rows = pack(std::vector<int64_t>{2, 1, 3});
  EXPECT_EQ(rows.cu_seqlens, (std::vector<int64_t>{0, 2, 3, 6}));
  EXPECT_TRUE(at::equal(rows.position_ids, at::tensor({0, 1, 0, 0, 1, 2}, at::kLong)));
  EXPECT_EQ(rows.num_segments(), 3);
  EXPECT_EQ(rows.num_tokens(), 6);
}

TEST(Rows, gathered_ones_are_runs_of_neighbours_within_a_sequence) {
  Rows rows = pack(std::vector<int64_t>{4, 3, 5});
  rows.segments[0].slot = 7;
  rows.segments[1] = {-1, 5, true, 10};
  rows.segments[2].key = 9;
  const Rows got = rows.gather(std::vector<int64_t>{1, 3, 4, 5, 8, 10, 11});
  EXPECT_EQ(got.cu_seqlens, (std::vector<int64_t>{0, 1, 2, 4, 5, 7}));
  const std::vector<Segment> want{{.slot = 7, .first = 1},
                                  {.slot = 7, .first = 3},
                                  {-1, 5, true, 10},
                                  {.key = 9, .first = 1},
                                  {.key = 9, .first = 3}};
  EXPECT_EQ(got.segments, want);
  EXPECT_EQ(got.gather(std::vector<int64_t>{3}).segments[0], (Segment{-1, 5, true, 11}));
  EXPECT_EQ(rows.part(5, 2).segments[0], (Segment{-1, 5, true, 11}));
  EXPECT_EQ(rows.part(5, 2).num_tokens(), 2);
}

TEST(Rows, gathered_by_sequence_are_one_segment_of_each_that_has_some) {
  Rows rows = pack(std::vector<int64_t>{4, 3, 5});
  rows.segments[0].slot = 7;
  rows.segments[2] = {-1, 9, true, 10};
  const Rows got = rows.gather_sequences(std::vector<int64_t>{1, 3, 8, 10, 11});
  EXPECT_EQ(got.cu_seqlens, (std::vector<int64_t>{0, 2, 5}));
  EXPECT_EQ(got.segments, (std::vector<Segment>{{.slot = 7}, {-1, 9, true, 0}}));
  EXPECT_EQ(rows.gather_sequences({}).num_segments(), 0);
}

TEST(Rows, a_sequence_without_tokens_is_an_error) {
  try {
    pack(std::vector<int64_t>{2, 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "nn: sequence 1 has 0 tokens, it must have at least 1");
  }
}

}  // namespace
}  // namespace twinkle::nn
