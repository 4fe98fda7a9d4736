#include "twinkle/text/rust/shared_tokenizer.h"

#include <gtest/gtest.h>

#include "twinkle/text/template.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::text {
namespace {

TEST(SharedTokenizer, IsOneForAllWhoUseItAtATimeAndNewWhenItsFilesAreNew) {
  TinyModel model;
  const Template one(model.directory()), other(model.directory());
  EXPECT_EQ(&one.tokenizer(), &other.tokenizer());
  const auto held = shared_tokenizer(model.directory());
  EXPECT_EQ(held.get(), &one.tokenizer());
  model.write("special_tokens_map.json", R"({"eos_token": "</s>"})");
  const auto fresh = shared_tokenizer(model.directory());
  EXPECT_NE(fresh.get(), held.get());
  EXPECT_TRUE(fresh->special_tokens().contains("eos_token"));
}

TEST(SharedTokenizer, TheDecoderWritesSpecialTokensOutAndOutlivesWhoOpenedIt) {
  const TinyModel model;
  const auto decode = decoder_of(model.directory().string());
  EXPECT_EQ(decode(std::vector<int32_t>{258, 'h', 'i', 259}), "<s>hi</s>");
  EXPECT_NE(error_of([] { decoder_of("/nowhere"); }).find("/nowhere/tokenizer.json"),
            std::string::npos);
}

}  // namespace
}  // namespace twinkle::text
