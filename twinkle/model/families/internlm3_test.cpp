#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

TEST(InternLm3, ItsBiasesAreAllOrNone) {
  JsonObject config = tiny_config();
  config["model_type"] = "internlm3";
  config["architectures"] = JsonArray{"InternLM3ForCausalLM"};
  EXPECT_FALSE(read_spec(config).layers.back().attention().qkv_bias);
  for (const char* key : {"bias", "qkv_bias"}) config[key] = true;
  EXPECT_TRUE(read_spec(config).layers.back().attention().o_bias);
  EXPECT_TRUE(read_spec(config).layers.back().gated_mlp().bias);
  config["bias"] = false;
  expect_error("'qkv_bias' is 1 and 'bias' is 0", [&] { read_spec(config); });
}

}  // namespace
}  // namespace twinkle::model
