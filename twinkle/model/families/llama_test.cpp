#include <gtest/gtest.h>

#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

TEST(Llama, HasNoBiasesUnlessTheConfigAsksForThem) {
  JsonObject config = tiny_config();
  EXPECT_EQ(read_spec(config).family, "llama");
  EXPECT_FALSE(read_spec(config).layers.back().mixer.qkv_bias);
  EXPECT_FALSE(read_spec(config).layers.back().mixer.o_bias);
  EXPECT_FALSE(read_spec(config).layers.back().mixer.qk_norm);
  EXPECT_FALSE(read_spec(config).layers.back().mlp.bias);
  config["attention_bias"] = true;
  EXPECT_TRUE(read_spec(config).layers.back().mixer.qkv_bias);
  EXPECT_TRUE(read_spec(config).layers.back().mixer.o_bias);
  EXPECT_FALSE(read_spec(config).layers.back().mlp.bias);
  config["mlp_bias"] = true;
  EXPECT_TRUE(read_spec(config).layers.back().mlp.bias);
}

}  // namespace
}  // namespace twinkle::model
