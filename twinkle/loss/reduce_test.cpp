#include "twinkle/loss/reduce.h"

#include <gtest/gtest.h>

namespace twinkle::loss {
namespace {

TEST(Reduce, SumsEachSequenceInDouble) {
  const std::vector<float> values = {1e8F, 1.0F, -1e8F, 0.5F};
  EXPECT_EQ(sequence_sums(values, std::vector<int64_t>{0, 3, 3, 4}),
            (std::vector<double>{1.0, 0.0, 0.5}));
  EXPECT_EQ(total(values, std::vector<int64_t>{0, 3, 3, 4}), 1.5);
}

TEST(Reduce, TensorsAndVectorsAgreeBitForBit) {
  const at::Tensor values = at::randn({100000});
  const std::vector<int64_t> cu_seqlens = {0, 70000, 100000};
  const at::Tensor sums = sequence_sums(values, cu_seqlens);
  const auto expected = sequence_sums(elements(values), std::span<const int64_t>(cu_seqlens));
  EXPECT_EQ(sums[0].item<double>(), expected[0]);
  EXPECT_EQ(sums[1].item<double>(), expected[1]);
}

TEST(Reduce, CountsTheRowsWithAWeight) {
  EXPECT_EQ(num_scored(at::tensor({0.0F, 0.5F, -1.0F, 0.0F})), 2);
}

}  // namespace
}  // namespace twinkle::loss
