#include "twinkle/text/rust/tokenizer.h"

#include <gtest/gtest.h>

#include "twinkle/text/tiny_model_test.h"

namespace twinkle::text {
namespace {

using Ids = std::vector<int64_t>;

TEST(Tokenizer, SplitsIntoBytesMergesAndSpecialTokens) {
  const TinyModel model;
  const Tokenizer tokenizer(model.directory());
  EXPECT_EQ(tokenizer.encode("<s>b a\n\n</s>"), (Ids{258, 'b', 257, 256, 259}));
  EXPECT_EQ(tokenizer.encode("é"), (Ids{0xC3, 0xA9}));
  EXPECT_EQ(tokenizer.encode(""), Ids{});
}

TEST(Tokenizer, DecodesWhatItEncodedAndSkipsSpecialTokensOnRequest) {
  const TinyModel model;
  const Tokenizer tokenizer(model.directory());
  const std::string text = "<s>na\tïve 🙂 \n\n x</s>";
  const Ids ids = tokenizer.encode(text);
  EXPECT_EQ(tokenizer.decode(ids), text);
  EXPECT_EQ(tokenizer.decode(ids, true), "na\tïve 🙂 \n\n x");
  EXPECT_EQ(tokenizer.batch_decode(std::vector<Ids>{ids, {'a'}}, true),
            (std::vector<std::string>{"na\tïve 🙂 \n\n x", "a"}));
}

TEST(Tokenizer, KnowsIdsTokensAndSpecialTokens) {
  const TinyModel model;
  const Tokenizer tokenizer(model.directory());
  EXPECT_EQ(tokenizer.vocab_size(), 260);
  EXPECT_EQ(tokenizer.bos_id(), 258);
  EXPECT_EQ(tokenizer.eos_id(), 259);
  EXPECT_EQ(tokenizer.pad_id(), std::nullopt);
  EXPECT_EQ(tokenizer.id("Ġa"), 257);
  EXPECT_EQ(tokenizer.id("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.token(257), "Ġa");
  EXPECT_EQ(tokenizer.token(260), std::nullopt);
  EXPECT_EQ(tokenizer.token(-1), std::nullopt);
}

TEST(Tokenizer, AddsTheTokensThatOnlyTheConfigurationNames) {
  const TinyModel model;
  model.write("tokenizer_config.json", R"({
    "added_tokens_decoder": {"261": {"content": "<two>", "special": false},
                             "260": {"content": "<one>", "special": true}},
    "pad_token": "<pad>", "additional_special_tokens": ["<more>"]})");
  const Tokenizer tokenizer(model.directory());
  EXPECT_EQ(tokenizer.encode("<one><two><pad><more>"), (Ids{260, 261, 262, 263}));
  EXPECT_EQ(tokenizer.decode(Ids{260, 261, 262}, true), "<two>");
  EXPECT_EQ(tokenizer.pad_id(), 262);
}

TEST(Tokenizer, FlagsOfTheConfigurationsTokensWinOverTokenizerJsons) {
  const TinyModel model;
  const auto ids = [&model](const std::string& flags) {
    model.write(
        "tokenizer_config.json",
        R"({"added_tokens_decoder": {"258": {"content": "<s>", "special": true)" + flags + "}}}");
    return Tokenizer(model.directory()).encode("b <s> b");
  };
  EXPECT_EQ(ids(""), (Ids{'b', ' ', 258, ' ', 'b'}));
  EXPECT_EQ(ids(R"(, "lstrip": true)"), (Ids{'b', 258, ' ', 'b'}));
  EXPECT_EQ(ids(R"(, "rstrip": true)"), (Ids{'b', ' ', 258, 'b'}));
}

TEST(Tokenizer, NamedTokensOfTheConfigurationAreAddedInTransformersOrder) {
  const TinyModel model;
  model.write("tokenizer_config.json", R"({
    "image_token": "<image>", "pad_token": "<pad>", "additional_special_tokens": ["<more>"],
    "extra_special_tokens": {"extra_token": "<|extra|>"}})");
  const Tokenizer tokenizer(model.directory());
  EXPECT_EQ(tokenizer.encode("a<|extra|>b"), (Ids{'a', 262, 'b'}));
  EXPECT_EQ(tokenizer.encode("<pad><image><more>"), (Ids{260, 261, 263}));
  EXPECT_EQ(tokenizer.special_tokens().at("extra_token"), "<|extra|>");
}

TEST(Tokenizer, OlderFilesAreReadWhereTheConfigurationHasNoAddedTokens) {
  const TinyModel model;
  model.write("special_tokens_map.json",
              R"({"eos_token": "<map>", "additional_special_tokens": ["<more>"]})");
  model.write("added_tokens.json", R"({"<late>": 400, "<early>": 300, "<lost>": 259})");
  const Tokenizer old(model.directory());
  EXPECT_EQ(old.encode("<early><late><map><more>"), (Ids{260, 261, 262, 263}));
  EXPECT_EQ(old.eos_id(), 262);
  EXPECT_EQ(old.id("<lost>"), std::nullopt);  // tokenizer.json has another token of this id
  model.write("tokenizer_config.json", R"({"added_tokens_decoder": {}, "eos_token": "</s>"})");
  const Tokenizer now(model.directory());
  EXPECT_EQ(now.eos_id(), 259);
  EXPECT_EQ(now.id("<more>"), std::nullopt);
}

TEST(Tokenizer, WhatStandsAroundATextIsTokenizerJsonsAsInTransformers) {
  const TinyModel model;
  model.write("tokenizer_config.json",
              R"({"bos_token": "<s>", "add_bos_token": true, "add_eos_token": true})");
  EXPECT_EQ(Tokenizer(model.directory()).encode("a", true), (Ids{'a'}));
}

TEST(Tokenizer, KeysThatWouldChangeIdsAreRefusedByName) {
  const TinyModel model;
  const auto error = [&model](const std::string& config) {
    model.write("tokenizer_config.json", config);
    const std::string text = error_of([&] { Tokenizer opened(model.directory()); });
    return text.substr(0, text.find(" of /")) +
           text.substr(std::min(text.size(), text.find(" is ")));
  };
  EXPECT_EQ(error(R"({"split_special_tokens": true})"),
            "text: field 'split_special_tokens' is true, this version takes only false");
  EXPECT_EQ(error(R"({"fix_mistral_regex": true})"),
            "text: field 'fix_mistral_regex' is true, this version takes only false");
  EXPECT_EQ(error(R"({"extra_special_tokens": 5})"),
            "text: field 'extra_special_tokens' is 5, it must be a list of tokens, or an object of "
            "them");
}

TEST(Tokenizer, KeysThatATokenizerClassAppliesMustBeTokenizerJsons) {
  const TinyModel model;
  const auto error = [&model](const std::string& name, const std::string& key) {
    model.write("tokenizer_config.json", R"({"tokenizer_class": ")" + name + "\", " + key + "}");
    const std::string text = error_of([&] { Tokenizer opened(model.directory()); });
    return text.substr(std::min(text.size(), text.find(".json: ")));
  };
  const std::string space = R"("add_prefix_space": true)", lower = R"("do_lower_case": true)";
  EXPECT_EQ(error("GPT2Tokenizer", space),
            ".json: add_prefix_space is false here and true in tokenizer_config.json, whose "
            "tokenizer_class applies that; make them the same");
  EXPECT_EQ(error("BertTokenizer", lower),
            ".json: do_lower_case is false here and true in tokenizer_config.json, whose "
            "tokenizer_class applies that; make them the same");
  EXPECT_NE(error("Qwen2TokenizerFast", space), "");
  for (const auto& [name, key] : {std::pair{"PreTrainedTokenizerFast", space},
                                  {"PreTrainedTokenizerFast", lower},
                                  {"GPT2Tokenizer", lower},
                                  {"BertTokenizer", R"("do_lower_case": null)"},
                                  {"GPT2Tokenizer", R"("add_prefix_space": false)"}})
    EXPECT_EQ(error(name, key), "") << name << key;
}

TEST(Tokenizer, OffsetsCoverTheWholeTextOrLeaveOutLeadingBlanks) {
  const TinyModel model;
  const Tokenizer tokenizer(model.directory());
  const Encoding whole = tokenizer.encode_with_offsets("é a", Offsets::kWhole);
  EXPECT_EQ(whole.ids, (Ids{0xC3, 0xA9, 257}));
  EXPECT_EQ(whole.begins, (std::vector<uint32_t>{0, 0, 2}));
  EXPECT_EQ(whole.ends, (std::vector<uint32_t>{2, 2, 4}));
  const Encoding trimmed = tokenizer.encode_with_offsets("é a", Offsets::kTrimmed);
  EXPECT_EQ(trimmed.ids, whole.ids);
  EXPECT_EQ(trimmed.begins, (std::vector<uint32_t>{0, 0, 3}));
}

TEST(Tokenizer, EncodesABatchInOrderAndNamesABadRow) {
  const TinyModel model;
  const Tokenizer tokenizer(model.directory());
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) texts.push_back("text " + std::to_string(i));
  const auto rows = tokenizer.batch_encode(texts);
  ASSERT_EQ(rows.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(rows[i], tokenizer.encode(texts[i]));
  texts[200] = "\xff";
  texts[111] = "\xff";
  EXPECT_EQ(error_of([&] { tokenizer.batch_encode(texts); }).substr(0, 58),
            "text: row 111: cannot tokenise: the text is not UTF-8: inv");
}

TEST(Tokenizer, RefusesMissingAndBrokenFilesAndWrongIds) {
  const TinyModel model;
  const auto open = [&] { Tokenizer tokenizer(model.directory()); };
  const std::string file = (model.directory() / "tokenizer.json").string();
  const Tokenizer tokenizer(model.directory());
  EXPECT_EQ(error_of([&] { tokenizer.decode(Ids{1, -5}); }),
            "text: token id -5 is outside [0, 2^32)");
  model.write("tokenizer.json", "{\"version\": \"1.0\"");
  EXPECT_EQ(error_of(open).substr(0, file.size() + 8), "text: " + file + ": ");
  model.remove("tokenizer.json");
  EXPECT_EQ(error_of(open),
            "text: cannot open " + file + ", a model directory holds a tokenizer.json");
}

}  // namespace
}  // namespace twinkle::text
