#include <gtest/gtest.h>

#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

TEST(Qwen2, HasBiasesOnQueriesKeysAndValuesAlone) {
  const DecoderSpec spec = read_spec(tiny_config("qwen2"));
  EXPECT_EQ(spec.family, "qwen2");
  EXPECT_TRUE(spec.layers.back().attention().qkv_bias);
  EXPECT_FALSE(spec.layers.back().attention().o_bias);
  EXPECT_FALSE(spec.layers.back().attention().qk_norm);
  EXPECT_FALSE(spec.layers.back().gated_mlp().bias);
}

}  // namespace
}  // namespace twinkle::model
