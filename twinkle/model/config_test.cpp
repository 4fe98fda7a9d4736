#include "twinkle/model/config.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

// A gemma3 with pictures, or its text alone.
JsonObject gemma3(bool pictures) {
  JsonObject text = tiny_config("gemma3");
  const JsonObject fields{{"model_type", "gemma3_text"},
                          {"architectures", JsonArray{"Gemma3ForCausalLM"}},
                          {"sliding_window", 8},
                          {"query_pre_attn_scalar", 20},
                          {"hidden_activation", "gelu_pytorch_tanh"}};
  for (const auto& [key, value] : fields) text[key] = value;
  if (!pictures) return text;
  text.erase("architectures");
  return {{"model_type", "gemma3"},
          {"architectures", JsonArray{"Gemma3ForConditionalGeneration"}},
          {"text_config", text}};
}

constexpr const char *kAlone = "model.", *kNow = "model.language_model.",
                     *kBefore = "language_model.model.";

std::string refusal_of(const JsonObject& config, const std::vector<std::string>& roots) {
  const ScratchDir folder;
  std::map<std::string, at::Tensor> weights;
  for (const std::string& root : roots) weights[root] = at::zeros({2, 2});
  write_tiny(folder.path(), config, weights);
  const std::string text = error_of([&] { spec_of(Checkpoint::open(folder.path())); });
  const std::string path = "model: " + folder.path().string() + " has the embedding ";
  return text.starts_with(path) ? text.substr(path.size()) : text;
}

TEST(Config, TensorsThatAnotherClassOfTheFamilyNamesAreRefusedByBothNames) {
  const std::string e = "embed_tokens.weight",
                    alone = kAlone + e + ", as a text model alone has it",
                    now = kNow + e +
                          ", as transformers 5 has it of the text inside a model with pictures",
                    before = kBefore + e +
                             ", as the hub's older files have it of the text inside a model with "
                             "pictures",
                    asks = "; its config.json asks for ",
                    remedy = ": take the config.json that was saved with these weights";
  EXPECT_EQ(refusal_of(gemma3(true), {kAlone + e}), alone + asks + now + remedy);
  EXPECT_EQ(refusal_of(gemma3(false), {kNow + e}), now + asks + alone + remedy);
  EXPECT_EQ(refusal_of(gemma3(false), {kBefore + e}), before + asks + alone + remedy);
  EXPECT_EQ(refusal_of(gemma3(true), {kNow + e, "language_model.model.norm.weight"}),
            now + "; its config.json and other tensors ask for " + before + remedy);
  for (const char* root : {kNow, kBefore})
    EXPECT_EQ(refusal_of(gemma3(true), {root + e}), "no error");
  EXPECT_EQ(refusal_of(gemma3(false), {kAlone + e}), "no error");
  EXPECT_EQ(refusal_of(gemma3(false), {"model.norm.weight"}), "no error") << "the decoder's affair";
}

}  // namespace
}  // namespace twinkle::model
