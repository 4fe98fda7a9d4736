#include <gtest/gtest.h>

#include "twinkle/io/gguf/gguf_for_test.h"

namespace twinkle {
namespace {

std::string texts(const std::vector<std::string>& values) {
  std::string out = raw<uint32_t>(8) + raw<uint64_t>(values.size());
  for (const std::string& value : values) out += raw_text(value);
  return out;
}

// Four tokens, of which the last is not text.
Gguf bpe(const std::string& split = "smollm", bool adds_bos = false) {
  Gguf gguf;
  gguf.add("tokenizer.ggml.model", "gpt2");
  gguf.add("tokenizer.ggml.pre", split);
  gguf.add("tokenizer.ggml.add_bos_token", 7, raw(adds_bos));
  gguf.add("tokenizer.ggml.tokens", 9, texts({"a", "b", "ab", "<end>"}));
  gguf.add("tokenizer.ggml.token_type", 9,
           raw<uint32_t>(5) + raw<uint64_t>(4) + raw(1) + raw(1) + raw(1) + raw(3));
  gguf.add("tokenizer.ggml.merges", 9, texts({"a b"}));
  gguf.add("tokenizer.ggml.eos_token_id", uint32_t{3});
  gguf.add("tokenizer.ggml.unknown_token_id", uint32_t{0});
  gguf.add("tokenizer.chat_template", "{{ messages }}");
  gguf.add("llama.context_length", uint32_t{64});
  return gguf;
}

JsonObject files_of(const Gguf& gguf) {
  const ScratchDir dir;
  write_text(dir / "x.gguf", gguf.file());
  return gguf_bpe(dir / "x.gguf");
}

TEST(GgufBpe, IsTheFilesThatTransformersReads) {
  const Json files = files_of(bpe());
  const Json& tokenizer = files.at("tokenizer.json");
  EXPECT_EQ(tokenizer.at("model").at("vocab"), (Json{{"a", 0}, {"b", 1}, {"ab", 2}, {"<end>", 3}}));
  EXPECT_EQ(tokenizer.at("model").at("merges"), (JsonArray{JsonArray{"a", "b"}}));
  ASSERT_EQ(tokenizer.at("added_tokens").as_array().size(), 1);
  EXPECT_EQ(tokenizer.at("added_tokens").at(0).at("content"), "<end>");
  EXPECT_EQ(tokenizer.at("added_tokens").at(0).at("id"), 3);
  const Json& config = files.at("tokenizer_config.json");
  EXPECT_EQ(config.at("eos_token"), "<end>");
  EXPECT_EQ(config.at("unk_token"), "a");
  EXPECT_EQ(config.at("model_max_length"), 64);
  EXPECT_EQ(config.at("chat_template"), "{{ messages }}");
  EXPECT_EQ(files.at("generation_config.json"), (Json{{"eos_token_id", 3}}));
}

TEST(GgufBpe, RefusesAnotherSplitAndTokensThatItWouldAdd) {
  const std::string split = error_of([] { files_of(bpe("llama-bpe")); });
  EXPECT_NE(split.find("tokenizer.ggml.pre is 'llama-bpe', it must be 'smollm'"), split.npos);
  const std::string adds = error_of([] { files_of(bpe("smollm", true)); });
  EXPECT_NE(adds.find("tokenizer.ggml.add_bos_token is true, it must be false"), adds.npos);
}

}  // namespace
}  // namespace twinkle
