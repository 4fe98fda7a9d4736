#include "twinkle/model/weights/weight_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace twinkle::model {
namespace {

TEST(WeightMemory, TensorsLieApartOnWholeLinesAndKeepWhatIsWritten) {
  WeightMemory memory;
  std::vector<at::Tensor> tensors;
  // From a few bytes to more than a block.
  for (const int64_t rows : {1, 37, 300, 5000, 90000, 3}) {
    tensors.push_back(memory.empty({rows, 101}, at::kFloat).fill_(static_cast<double>(rows)));
  }
  for (const at::Tensor& t : tensors) {
    EXPECT_TRUE(t.eq(static_cast<double>(t.size(0))).all().item<bool>()) << t.sizes();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data_ptr()) % 64, 0u);
    EXPECT_TRUE(t.is_contiguous());
  }
}

TEST(WeightMemory, TensorsOutliveIt) {
  at::Tensor kept;
  {
    WeightMemory memory;
    memory.empty({1000, 100}, at::kBFloat16).fill_(1);
    kept = memory.empty({1000, 100}, at::kBFloat16).fill_(2);
  }
  EXPECT_TRUE(kept.eq(2).all().item<bool>());
}

}  // namespace
}  // namespace twinkle::model
