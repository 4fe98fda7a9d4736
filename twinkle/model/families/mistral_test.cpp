#include <gtest/gtest.h>

#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

TEST(Mistral, HasAWindowOnAllLayersOrOnNone) {
  JsonObject config = tiny_config();
  config["model_type"] = "mistral";
  config["architectures"] = JsonArray{"MistralForCausalLM"};
  config["sliding_window"] = nullptr;
  EXPECT_EQ(read_spec(config).layers.front().attention().window, 0);
  config["sliding_window"] = 9;
  for (const LayerSpec& layer : read_spec(config).layers) EXPECT_EQ(layer.attention().window, 9);
}

}  // namespace
}  // namespace twinkle::model
