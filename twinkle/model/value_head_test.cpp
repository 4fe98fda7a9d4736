#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/model/decoder.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

JsonObject classifier(const char* architecture = "LlamaForTokenClassification") {
  JsonObject config = tiny_config();
  config["architectures"] = JsonArray{architecture};
  config["id2label"] = JsonObject{{"0", "good"}};
  return config;
}

Decoder decoder_of(const JsonObject& config, const std::map<std::string, at::Tensor>& weights) {
  const ScratchDir dir;
  write_tiny(dir.path(), config, weights);
  return Decoder(read_spec(config, true), Checkpoint::open(dir.path()), at::kFloat);
}

TEST(ValueHead, ANewOneIsZeroAndTheEmbeddingKeepsItsVocabulary) {
  for (const bool tied : {true, false}) {
    JsonObject config = tiny_config();
    config["tie_word_embeddings"] = tied;
    const auto given = tiny_weights(config);
    const ScratchDir dir;
    write_tiny(dir.path(), config, given);
    Decoder decoder(read_spec(config, true), Checkpoint::open(dir.path()), at::kFloat);
    EXPECT_EQ(decoder.spec().num_logits(), 1);
    EXPECT_EQ(decoder.spec().vocab_size, 131);
    const auto weights = decoder.weights();
    EXPECT_TRUE(at::equal(*weights[0].value, given.at("model.embed_tokens.weight")));
    const auto& weight = weights[weights.size() - 2];
    const auto& bias = weights.back();
    EXPECT_EQ(weight.name, "score.weight");
    EXPECT_TRUE(weight.decay);
    EXPECT_TRUE(at::equal(*weight.value, at::zeros({1, 48})));
    EXPECT_EQ(bias.name, "score.bias");
    EXPECT_FALSE(bias.decay);
    EXPECT_TRUE(at::equal(*bias.value, at::zeros({1})));
    weight.value->fill_(3);
    const auto initial = [&](const NamedWeight& w) {
      return weights_of(decoder.spec(), Checkpoint::open(dir.path()), at::kFloat)
          .read(w.name, w.value->sizes().vec());
    };
    EXPECT_TRUE(at::equal(initial(weight), at::zeros({1, 48})));
    EXPECT_TRUE(at::equal(initial(weights[0]), given.at("model.embed_tokens.weight")));
  }
}

TEST(ValueHead, AClassifiersHeadIsTakenAndItsBiasWhereItHasOne) {
  auto weights = tiny_weights(tiny_config());
  weights["score.weight"] = at::randn({1, 48});
  Decoder without = decoder_of(classifier("LlamaForSequenceClassification"), weights);
  EXPECT_TRUE(at::equal(without.head().weight, weights["score.weight"]));
  EXPECT_TRUE(at::equal(without.head().bias, at::zeros({1})));
  weights["score.bias"] = at::full({1}, -2.5);
  Decoder with = decoder_of(classifier(), weights);
  EXPECT_TRUE(at::equal(with.head().bias, weights["score.bias"]));
}

TEST(ValueHead, EveryWeightHasABufferInItsPlace) {
  auto weights = tiny_weights(tiny_config());
  weights["score.weight"] = at::randn({1, 48});
  Decoder decoder = decoder_of(classifier(), weights);
  decoder.train_all();
  EXPECT_EQ(decoder.buffers().size(), decoder.weights().size()) << "the embedding is not tied";
  EXPECT_NE(decoder.head().bias_grad, nullptr);
  decoder.freeze();
  EXPECT_EQ(decoder.head().bias_grad, nullptr);
}

TEST(ValueHead, ACheckpointThatHasNoSuchHeadIsNamed) {
  const auto refusal = [](JsonObject config, bool value_head = true) {
    return error_of([&] { read_spec(config, value_head); });
  };
  EXPECT_EQ(
      refusal(classifier(), false),
      "model: architecture \"LlamaForTokenClassification\" of model_type 'llama' is not known; "
      "known: LlamaForCausalLM, and this one with value_head (TransformersValueModel)");
  JsonObject two = classifier();
  two.erase("id2label");
  EXPECT_EQ(refusal(two),
            "model: the checkpoint is a classifier with 2 labels (id2label), a value head has 1");
  two["num_labels"] = 1;
  EXPECT_EQ(refusal(two), "no error");
  EXPECT_EQ(
      refusal(classifier("Qwen2ForTokenClassification")),
      "model: architecture \"Qwen2ForTokenClassification\" of model_type 'llama' is not known; "
      "known: LlamaForCausalLM");
  const std::string missing =
      error_of([&] { decoder_of(classifier(), tiny_weights(tiny_config())); });
  EXPECT_NE(missing.find("has no tensor score.weight"), missing.npos) << missing;
}

TEST(ValueHead, WhatIsSavedIsDescribedAsAClassifierWithOneLabel) {
  JsonObject config = tiny_config("qwen3");
  config["num_labels"] = 5;
  describe_value_head(config, read_spec(config, true));
  EXPECT_EQ(config["architectures"], Json(JsonArray{"Qwen3ForTokenClassification"}));
  EXPECT_EQ(config["id2label"], Json(JsonObject{{"0", "LABEL_0"}}));
  EXPECT_FALSE(config.contains("num_labels"));
  EXPECT_FALSE(read_spec(config, true).new_head);
  EXPECT_TRUE(read_spec(tiny_config("qwen3"), true).new_head);
}

TEST(ValueHead, AFamilyWithoutATokenClassifierInTransformersHasNone) {
  JsonObject config = tiny_config();
  config["model_type"] = "internlm2";
  config["architectures"] = JsonArray{"InternLM2ForCausalLM"};
  read_spec(config);
  const auto refused = error_of([&] { read_spec(config, true); });
  EXPECT_NE(refused.find("'internlm2' has no token classifier in transformers"), refused.npos)
      << refused;
}

}  // namespace
}  // namespace twinkle::model
