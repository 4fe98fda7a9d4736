#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

JsonObject glm_config(const std::string& family = "glm") {
  JsonObject config = tiny_config();
  config["model_type"] = family;
  config["architectures"] = JsonArray{family == "glm" ? "GlmForCausalLM" : "Glm4ForCausalLM"};
  config.erase("rms_norm_eps");
  return config;
}

TEST(Glm, HalfOfAHeadTurnsInPairsOfNeighboursUnlessTheConfigSaysMore) {
  JsonObject config = glm_config();
  DecoderSpec spec = read_spec(config);
  EXPECT_EQ(spec.rope.rotary_dim, 6);
  EXPECT_TRUE(spec.rope.interleaved);
  EXPECT_TRUE(spec.layers.back().attention().qkv_bias);
  EXPECT_FALSE(spec.layers.back().attention().o_bias);
  EXPECT_TRUE(spec.layers.back().gated_mlp().fused);
  EXPECT_FALSE(spec.sandwich);
  EXPECT_EQ(spec.norm.eps, 1.5625e-07);
  config["partial_rotary_factor"] = 1.0;  // GLM-Edge
  config["attention_bias"] = false;
  spec = read_spec(config);
  EXPECT_EQ(spec.rope.rotary_dim, 12);
  EXPECT_FALSE(spec.layers.back().attention().qkv_bias);
  config["rope_parameters"] = JsonObject{{"rope_type", "default"}, {"partial_rotary_factor", 0.35}};
  EXPECT_EQ(read_spec(config).rope.rotary_dim, 4) << "that of the rope is the nearer one";
}

TEST(Glm, AShareThatRopeCannotTurnIsRefused) {
  JsonObject config = glm_config();
  config["partial_rotary_factor"] = 0.25;
  expect_error("'partial_rotary_factor' is 0.25, which is 3 dims of 12",
               [&] { read_spec(config); });
  config["partial_rotary_factor"] = 1.5;
  expect_error("'partial_rotary_factor' is 1.5, it must be above 0 and at most 1",
               [&] { read_spec(config); });
}

TEST(Glm4, NormsWhatItsBlocksReturn) {
  const DecoderSpec spec = read_spec(glm_config("glm4"));
  EXPECT_TRUE(spec.sandwich);
  EXPECT_EQ(spec.rope.rotary_dim, 6);
}

}  // namespace
}  // namespace twinkle::model
