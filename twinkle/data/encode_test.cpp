#include "twinkle/data/encode.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/text/tiny_model_test.h"
#include "twinkle/text/turns.h"

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

std::string encode_error(const Template& tmpl, const Dataset& rows) {
  return twinkle::error_of([&] { rows.encode(encoder(tmpl)); });
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
  EXPECT_EQ(encode_error(splitting, dataset({pair})),
            "data: memory row 0: field 'positive' was split into 2; nested samples cannot be "
            "split, "
            "use another truncation_strategy");
  const Template deleting(model.directory(), {.max_length = 23, .truncation = Truncation::kDelete});
  EXPECT_EQ(dataset({pair}).encode(encoder(deleting)).size(), 0);
  EXPECT_NE(why_not(deleting, pair).value_or("").find("positive: "), std::string::npos);
}

TEST(Encode, ColumnsBesideAPairAreThoseOfBothChats) {
  const TinyModel model(
      "{{ tools | length if tools else '' }}{% for m in messages %}"
      "{{ '<s>' + m.role + '\n' + m.content + '</s>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}");
  const Template tmpl(model.directory());
  const auto with = [](const char* column, const Json& value, bool is_inner = false) {
    Row out = {{"positive", row("ab")}, {"negative", row("c")}};
    for (const char* side : {"positive", "negative"})
      if (is_inner) out.at(side).as_object()[column] = value;
    if (!is_inner) out[column] = value;
    return out;
  };
  const auto ids = [&](const Row& pair, const char* side) {
    return dataset({pair}).encode(encoder(tmpl)).row(0).at(side).at("input_ids");
  };
  const Json tools = JsonArray{JsonObject{{"name", "f"}}};
  for (const char* side : {"positive", "negative"}) {
    EXPECT_EQ(ids(with("system", "SYS"), side), ids(with("system", "SYS", true), side));
    EXPECT_EQ(ids(with("tools", tools), side), ids(with("tools", tools, true), side));
  }
  EXPECT_NE(ids(with("system", "SYS"), "negative"), ids(with("id", 1), "negative"));
  for (const auto& [column, value] : {std::pair<const char*, Json>{"weight", 0},
                                      {"history", JsonArray{JsonArray{"a", "b"}}},
                                      {"functions", JsonArray{1}},
                                      {"chat_template_kwargs", 1}}) {
    const std::string name = "field '" + std::string(column) + "'";
    EXPECT_NE(encode_error(tmpl, dataset({with(column, value)})).find(name), std::string::npos)
        << name;
    EXPECT_NE(why_not(tmpl, with(column, value)).value_or("").find(name), std::string::npos);
  }
  Row both = with("weight", 1, true);
  both["weight"] = 0;
  EXPECT_NE(encode_error(tmpl, dataset({both})).find("field 'weight' is 0"), std::string::npos);
}

TEST(Encode, ARowWithoutMessagesIsNamedWithItsPlace) {
  const TinyModel model;
  const Template tmpl(model.directory());
  const std::string error = encode_error(tmpl, dataset({row("a"), {{"query", "q"}}}));
  EXPECT_EQ(error.find("data: memory row 1: field 'messages' is missing"), 0u) << error;
  EXPECT_NE(error.find("messages"), std::string::npos) << error;
  EXPECT_TRUE(why_not(tmpl, {{"query", "q"}}));
}

TEST(Encode, CallsAreTrainedAsJsonWhereTheTemplateKnowsNone) {
  const TinyModel model,
      aware(
          "{% for m in messages %}{{ '<s>' + m.role + '\n' + (m.content or '') + "
          "(m.tool_calls | tojson if m.tool_calls else '') + '</s>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}");
  const auto chat = boost::json::parse(R"({"messages": [{"role": "user", "content": "q"},
      {"role": "assistant", "content": null, "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}, {"name": "g"}]}]})");
  const auto trained = [&](const TinyModel& of) {
    const Template tmpl(of.directory());
    const Dataset encoded = dataset({chat.as_object()}).encode(encoder(tmpl));
    EXPECT_EQ(encoded.row(0).at("messages"), chat.at("messages"));
    std::vector<int64_t> out;
    for (const int32_t label : integers(encoded.row(0), "labels"))
      if (label != text::kIgnored) out.push_back(label);
    return tmpl.decode(out);
  };
  EXPECT_EQ(trained(model), R"({"name":"f","arguments":{"x":1}})"
                            "\n"
                            R"({"name":"g"})"
                            "</s>\n");
  EXPECT_NE(trained(aware).find("\"type\""), std::string::npos);
}

TEST(EncodeTexts, JoinsTextsByTheEndTokenAndCutsThem) {
  const TinyModel model;
  const text::Tokenizer tokenizer(model.directory());
  const Dataset texts =
      dataset({{{"text", "ab"}}, {{"text", " \r\n"}}, {{"text", "c</s>"}}, {{"text", "de"}}});
  const Dataset encoded = encode_texts(texts, tokenizer, 3);
  const auto field = [&](int64_t row, const char* name) {
    return integers(encoded.row(row), name);
  };
  using Ids = std::vector<int32_t>;
  ASSERT_EQ(encoded.size(), 3);
  EXPECT_EQ(field(0, "input_ids"), (Ids{'a', 'b', 259}));
  EXPECT_EQ(field(0, "labels"), (Ids{'b', 259, 'c'}));
  EXPECT_EQ(field(1, "input_ids"), (Ids{'c', 259, 'd'}));
  EXPECT_EQ(field(2, "input_ids"), (Ids{'e', 259}));
  EXPECT_EQ(field(2, "labels"), (Ids{259, -100}));
  EXPECT_EQ(encoded.where(1), "memory row 2");
  EXPECT_EQ(encode_texts(texts, tokenizer, 7).size(), 1) << "a last token of no label is left out";
}

TEST(EncodeTexts, RefusesRowsOfNoTextAndATokenizerWithoutAnEnd) {
  const TinyModel model;
  const auto error = [&](const Dataset& rows, int64_t max_length) {
    const text::Tokenizer tokenizer(model.directory());
    return twinkle::error_of([&] { encode_texts(rows, tokenizer, max_length); });
  };
  EXPECT_EQ(error(dataset({{{"text", "a"}}, {{"body", "b"}}}), 3),
            "data: memory row 1: field 'text' is missing; the row has body");
  EXPECT_EQ(error(dataset({}), 0), "data: max_length is 0, it must be at least 1");
  model.write("tokenizer_config.json", "{}");
  EXPECT_EQ(error(dataset({}), 3),
            "data: the tokenizer of " + model.directory().string() +
                " names no eos_token, which ends a text; add it to tokenizer_config.json");
}

TEST(Integers, AreReadFromAFieldAndAnythingElseIsNamed) {
  const Row row = {{"ids", {1, -100}}, {"mixed", {1, 2.5}}, {"far", {1ll << 40}}, {"text", "1"}};
  EXPECT_EQ(integers(row, "ids"), (std::vector<int32_t>{1, -100}));
  const auto refusal = [&](const char* field) {
    return twinkle::invalid_of([&] { integers(row, field); });
  };
  EXPECT_EQ(refusal("input_ids"),
            "data: field 'input_ids' must be a list of integers; encode the rows first");
  EXPECT_EQ(refusal("text"),
            "data: field 'text' must be a list of integers; encode the rows first");
  EXPECT_EQ(refusal("mixed"),
            "data: field 'mixed' has 2.5E0 at 1, it must be an integer of 32 bits");
  EXPECT_EQ(refusal("far"),
            "data: field 'far' has 1099511627776 at 0, it must be an integer of 32 bits");
}

}  // namespace
}  // namespace twinkle::data
