#include <gtest/gtest.h>

#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

TEST(Llama, HasNoBiasesUnlessTheConfigAsksForThem) {
  JsonObject config = tiny_config();
  EXPECT_EQ(read_spec(config).family, "llama");
  EXPECT_FALSE(read_spec(config).layers.back().attention().qkv_bias);
  EXPECT_FALSE(read_spec(config).layers.back().attention().o_bias);
  EXPECT_FALSE(read_spec(config).layers.back().attention().qk_norm);
  EXPECT_FALSE(read_spec(config).layers.back().gated_mlp().bias);
  config["attention_bias"] = true;
  EXPECT_TRUE(read_spec(config).layers.back().attention().qkv_bias);
  EXPECT_TRUE(read_spec(config).layers.back().attention().o_bias);
  EXPECT_FALSE(read_spec(config).layers.back().gated_mlp().bias);
  config["mlp_bias"] = true;
  EXPECT_TRUE(read_spec(config).layers.back().gated_mlp().bias);
}

}  // namespace
}  // namespace twinkle::model
