#include "twinkle/nn/attention/packing.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/base/error.h"

namespace twinkle::nn {
namespace {

TEST(Packing, positions_start_anew_in_each_sequence) {
  const Packing packing = pack(std::vector<int64_t>{2, 1, 3});
  EXPECT_EQ(packing.cu_seqlens, (std::vector<int64_t>{0, 2, 3, 6}));
  EXPECT_TRUE(at::equal(packing.position_ids, at::tensor({0, 1, 0, 0, 1, 2}, at::kLong)));
  EXPECT_EQ(packing.num_sequences(), 3);
  EXPECT_EQ(packing.num_tokens(), 6);
}

TEST(Packing, a_sequence_without_tokens_is_an_error) {
  try {
    pack(std::vector<int64_t>{2, 0});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "nn: sequence 1 has 0 tokens, it must have at least 1");
  }
}

}  // namespace
}  // namespace twinkle::nn
