#include "twinkle/io/folder/eos.h"

#include <gtest/gtest.h>

#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {
namespace {

TEST(Eos, IsThatOfTheConfigsAndOfTheTokenizer) {
  const ScratchDir folder;
  const auto eos = [&](int64_t vocab_size = 10) {
    return read_eos(folder.path(), JsonObject{{"eos_token_id", 2}}, vocab_size);
  };
  EXPECT_EQ(eos(), (std::vector<int32_t>{2}));
  write_text(folder / "tokenizer.json",
             R"({"added_tokens": [{"id": 7, "content": "<x>"}, {"id": 5, "content": "<e>"}],)"
             R"( "model": {"vocab": {"<e>": 1}}})");
  for (const char* text : {R"({"eos_token": "<e>"})", R"({"eos_token": {"content": "<e>"}})"}) {
    write_text(folder / "tokenizer_config.json", text);
    EXPECT_EQ(eos(), (std::vector<int32_t>{2, 5})) << text;
  }
  write_text(folder / "generation_config.json", R"({"eos_token_id": [3, 2]})");
  EXPECT_EQ(eos(), (std::vector<int32_t>{2, 3, 5}));
  EXPECT_EQ(eos(5), (std::vector<int32_t>{2, 3})) << "5 is beyond the vocabulary";
}

TEST(Eos, IsWrittenIntoTheConfigOfATrainedModel) {
  const auto written = [](const std::string& text, const std::vector<int32_t>& ids) {
    return boost::json::serialize(parse_json(with_eos(text, ids), "test"));
  };
  EXPECT_EQ(written(R"({"eos_token_id": 3, "top_k": 4})", {3, 5}),
            R"({"eos_token_id":[3,5],"top_k":4})");
  EXPECT_EQ(written(R"({"top_k": 4})", {5}), R"({"top_k":4,"eos_token_id":5})");
  EXPECT_EQ(with_eos(R"({ "eos_token_id" : 3})", {3}), R"({ "eos_token_id" : 3})") << "as it was";
}

TEST(Eos, IsInANewConfigWithTheOtherTokensOfTheModelsOwn) {
  const auto written = [](const JsonObject& config, const std::vector<int32_t>& ids) {
    return generation_config(config, ids);
  };
  JsonObject config{{"bos_token_id", 1}, {"eos_token_id", 0}, {"hidden_size", 8}};
  EXPECT_EQ(boost::json::serialize(parse_json(written(config, {0, 2}), "test")),
            R"({"bos_token_id":1,"eos_token_id":[0,2]})");
  EXPECT_EQ(written(config, {0}), "");
  EXPECT_EQ(written(config, {}), "");
}

}  // namespace
}  // namespace twinkle
