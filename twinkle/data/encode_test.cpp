#include "twinkle/data/encode.h"

#include <gtest/gtest.h>

#include "twinkle/text/tiny_model_test.h"

namespace twinkle::data {
namespace {

using text::Template;
using text::TinyModel;
using text::Truncation;

Row row(const std::string& answer) {
  return {{"messages", JsonArray{JsonObject{{"role", "user"}, {"content", "q"}},
                                 JsonObject{{"role", "assistant"}, {"content", answer}}}},
          {"user_data", JsonArray{JsonArray{"k", 1}}}};
}

Dataset dataset(Rows rows) { return Dataset(Table{.name = "memory", .rows = std::move(rows)}); }

std::string error_of(const Template& tmpl, const Dataset& rows) {
  try {
    rows.encode(encoder(tmpl));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Encode, KeepsTheRowsFieldsAndAddsTheTemplatesTokens) {
  const TinyModel model;
  const Template tmpl(model.directory());
  const Dataset encoded = dataset({row("ab")}).encode(encoder(tmpl));
  const auto feature = tmpl.encode(Json(row("ab")))[0];
  Row expected = row("ab");
  expected["input_ids"] = boost::json::value_from(feature.input_ids);
  expected["labels"] = boost::json::value_from(feature.labels);
  expected["length"] = feature.length();
  const Row& got = encoded.row(0);
  for (const auto& [key, value] : expected) EXPECT_EQ(got.at(key), value) << key;
  ASSERT_EQ(got.at("position_ids").as_array().size(), feature.input_ids.size());
  EXPECT_EQ(got.at("position_ids").as_array().back(), Json(feature.length() - 1));
  EXPECT_EQ(got.at("attention_mask").as_array(), JsonArray(feature.input_ids.size(), Json(1)));
}

TEST(Encode, DropsDeletedRowsAndKeepsThePiecesOfSplitOnes) {
  const TinyModel model;
  const Dataset rows = dataset({row("ab"), row(std::string(20, 'x'))});
  const Template deleting(model.directory(), {.max_length = 30, .truncation = Truncation::kDelete});
  EXPECT_EQ(rows.encode(encoder(deleting)).size(), 1);
  const Template splitting(model.directory(), {.max_length = 30, .truncation = Truncation::kSplit});
  EXPECT_EQ(rows.encode(encoder(splitting)).where(2), "memory row 1");
}

TEST(Encode, EncodesBothSidesOfAPair) {
  const TinyModel model;
  const Template tmpl(model.directory());
  const Row pair = {{"positive", row("ab")}, {"negative", row("c")}, {"id", 7}};
  const Dataset encoded = dataset({pair}).encode(encoder(tmpl));
  EXPECT_EQ(encoded.row(0).at("id"), Json(7));
  EXPECT_EQ(encoded.row(0).at("negative").at("input_ids"),
            boost::json::value_from(tmpl.encode(Json(row("c")))[0].input_ids));
  EXPECT_FALSE(why_not(tmpl, pair));
  const Template splitting(model.directory(), {.max_length = 23, .truncation = Truncation::kSplit});
  EXPECT_EQ(
      error_of(splitting, dataset({pair})),
      "data: memory row 0: data: field 'positive' was split in 2; nested samples cannot be split, "
      "use another truncation_strategy");
  const Template deleting(model.directory(), {.max_length = 23, .truncation = Truncation::kDelete});
  EXPECT_EQ(dataset({pair}).encode(encoder(deleting)).size(), 0);
  EXPECT_NE(why_not(deleting, pair).value_or("").find("positive: "), std::string::npos);
}

TEST(Encode, ARowWithoutMessagesIsNamedWithItsPlace) {
  const TinyModel model;
  const Template tmpl(model.directory());
  const std::string error = error_of(tmpl, dataset({row("a"), {{"query", "q"}}}));
  EXPECT_EQ(error.find("data: memory row 1: text: "), 0u) << error;
  EXPECT_NE(error.find("messages"), std::string::npos) << error;
  EXPECT_TRUE(why_not(tmpl, {{"query", "q"}}));
}

}  // namespace
}  // namespace twinkle::data
