#include <gtest/gtest.h>

#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

TEST(Qwen3, NormsItsHeadsAndHasBiasesOnlyWhenAsked) {
  JsonObject config = tiny_config("qwen3");
  const DecoderSpec spec = read_spec(config);
  EXPECT_EQ(spec.family, "qwen3");
  EXPECT_TRUE(spec.layers.back().attention().qk_norm);
  EXPECT_FALSE(spec.layers.back().attention().qkv_bias);
  EXPECT_FALSE(spec.layers.back().attention().o_bias);
  config["attention_bias"] = true;
  EXPECT_TRUE(read_spec(config).layers.back().attention().qkv_bias);
  EXPECT_TRUE(read_spec(config).layers.back().attention().o_bias);
}

}  // namespace
}  // namespace twinkle::model
