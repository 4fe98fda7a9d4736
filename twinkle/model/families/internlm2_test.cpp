#include <gtest/gtest.h>

#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

TEST(InternLm2, HasOneGroupedLinearForQueriesKeysAndValuesAndItsOwnNames) {
  JsonObject config = tiny_config();
  config["model_type"] = "internlm2";
  config["architectures"] = JsonArray{"InternLM2ForCausalLM"};
  config["rope_scaling"] = JsonObject{{"type", "dynamic"}, {"factor", 2.0}};
  config["bias"] = false;
  const DecoderSpec spec = read_spec(config);
  EXPECT_EQ(spec.layers.back().attention().projections, Projections::kGrouped);
  EXPECT_FALSE(spec.layers.back().attention().qkv_bias);
  EXPECT_EQ(spec.rope.kind, nn::RopeKind::kDefault);
  EXPECT_EQ(spec.layout.name("model.layers.1.self_attn.qkv_proj"), "model.layers.1.attention.wqkv");
  EXPECT_EQ(spec.layout.name("lm_head.weight"), "output.weight");
  config.erase("bias");  // as its own class has it
  EXPECT_TRUE(read_spec(config).layers.back().attention().qkv_bias);
  EXPECT_TRUE(read_spec(config).layers.back().attention().o_bias);
  EXPECT_FALSE(read_spec(config).layers.back().gated_mlp().bias);
}

}  // namespace
}  // namespace twinkle::model
