#include "twinkle/model/spec.h"

#include <gtest/gtest.h>

#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

std::string difference_of(const JsonObject& other, const JsonObject& ours = tiny_config()) {
  return difference(read_spec(ours), read_spec(other));
}

TEST(Spec, ModelsThatComputeTheSameDoNotDiffer) {
  JsonObject other = tiny_config();
  EXPECT_EQ(difference_of(other), "");
  other["rms_norm_eps"] = static_cast<double>(1e-5F);  // as a GGUF file keeps it
  EXPECT_EQ(difference_of(other), "");
}

TEST(Spec, TheFirstFieldThatDiffersIsNamedWithBothValues) {
  const auto with = [](const char* key, const Json& value) {
    JsonObject other = tiny_config();
    other[key] = value;
    return difference_of(other);
  };
  EXPECT_EQ(difference_of(tiny_config("qwen2")), "model_type is qwen2, this model's is llama");
  EXPECT_EQ(with("vocab_size", 7), "vocab_size is 7, this model's is 131");
  EXPECT_EQ(with("num_hidden_layers", 3), "num_hidden_layers is 3, this model's is 2");
  EXPECT_EQ(with("num_hidden_layers", 1), "num_hidden_layers is 1, this model's is 2");
  EXPECT_EQ(with("rms_norm_eps", 0.5), "rms_norm_eps is 5E-1, this model's is 1E-5");
  EXPECT_EQ(with("tie_word_embeddings", false),
            "tie_word_embeddings is false, this model's is true");
  EXPECT_EQ(with("rope_theta", 5), "rope_theta is 5E0, this model's is 1E4");
  EXPECT_EQ(with("rope_scaling", JsonObject{{"rope_type", "linear"}, {"factor", 2.0}}),
            "rope_type is linear, this model's is default");
  EXPECT_EQ(with("num_attention_heads", 2), "num_attention_heads is 2, this model's is 4");
  EXPECT_EQ(with("attention_bias", true), "attention_bias is true, this model's is false");
  EXPECT_EQ(with("intermediate_size", 96), "intermediate_size is 96, this model's is 80");
  EXPECT_EQ(with("mlp_bias", true), "mlp_bias is true, this model's is false");
}

TEST(Spec, AFieldThatDiffersInALaterLayerAloneIsNamedWithTheLayer) {
  JsonObject other = tiny_config("qwen2");
  other["use_sliding_window"] = true;
  other["sliding_window"] = 9;
  other["max_window_layers"] = 1;
  EXPECT_EQ(difference_of(other, tiny_config("qwen2")),
            "sliding_window (of layer 1) is 9, this model's is 0");
}

TEST(Spec, AnOptionalNumberThatOneModelLacksIsMissing) {
  JsonObject yarn = tiny_config();
  yarn["rope_scaling"] = JsonObject{{"rope_type", "yarn"}, {"factor", 2.0}};
  JsonObject other = yarn;
  other["rope_scaling"].as_object()["attention_factor"] = 1.5;
  EXPECT_EQ(difference_of(other, yarn), "attention_factor is 1.5E0, this model's is missing");
}

}  // namespace
}  // namespace twinkle::model
