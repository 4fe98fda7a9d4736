#include <gtest/gtest.h>

#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

TEST(Qwen2, HasBiasesOnQueriesKeysAndValuesAlone) {
  const DecoderSpec spec = read_spec(tiny_config("qwen2"));
  EXPECT_EQ(spec.family, "qwen2");
  EXPECT_TRUE(spec.layers.back().mixer.qkv_bias);
  EXPECT_FALSE(spec.layers.back().mixer.o_bias);
  EXPECT_FALSE(spec.layers.back().mixer.qk_norm);
  EXPECT_FALSE(spec.layers.back().mlp.bias);
}

}  // namespace
}  // namespace twinkle::model
