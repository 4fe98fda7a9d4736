#include <gtest/gtest.h>

#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

TEST(Qwen3, NormsItsHeadsAndHasBiasesOnlyWhenAsked) {
  JsonObject config = tiny_config("qwen3");
  const DecoderSpec spec = read_spec(config);
  EXPECT_EQ(spec.family, "qwen3");
  EXPECT_TRUE(spec.layers.back().mixer.qk_norm);
  EXPECT_FALSE(spec.layers.back().mixer.qkv_bias);
  EXPECT_FALSE(spec.layers.back().mixer.o_bias);
  config["attention_bias"] = true;
  EXPECT_TRUE(read_spec(config).layers.back().mixer.qkv_bias);
  EXPECT_TRUE(read_spec(config).layers.back().mixer.o_bias);
}

}  // namespace
}  // namespace twinkle::model
