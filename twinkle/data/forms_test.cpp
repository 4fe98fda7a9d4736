#include "twinkle/data/forms.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "twinkle/base/error_for_test.h"
#include "twinkle/data/encode.h"
#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::data {
namespace {

using text::Template;
using text::TinyModel;

Row row_of(std::string_view text) { return boost::json::parse(text).as_object(); }

// The preprocessors by which a row can be read.
std::string read_as(std::string_view row) {
  std::string out;
  for (const text::Form& form : forms_of(row_of(row)))
    out += (out.empty() ? "" : " ") + std::string(form.preprocessor);
  return out;
}

std::string refusal(std::string_view row) {
  return twinkle::error_of([&] { read_form(row_of(row)); });
}

Dataset rows_of(Rows rows, const std::string& name = "memory") {
  return Dataset(Table{.name = name, .rows = std::move(rows)});
}

TEST(Forms, RowsAreReadByWhatTheyHold) {
  EXPECT_EQ(read_as(R"({"prompt": "a", "completion": "b", "response": null})"),
            "PromptCompletionProcessor");
  EXPECT_EQ(read_as(R"({"messages": [{"from": "human", "value": "a"}]})"), "ShareGPTProcessor");
  EXPECT_EQ(read_as(R"({"messages": [{"role": "user", "content": "a"},
                                     {"role": "gpt", "content": "b"}]})"),
            "ShareGPTProcessor");
  EXPECT_EQ(read_as(R"({"messages": [{"role": "user", "content": "a"},
                                     {"role": "observation", "content": "b"}],
                        "prompt": "a", "completion": "b"})"),
            "");
  EXPECT_EQ(read_as(R"({"positive": {"messages": [1]}, "prompt": "a", "completion": "b"})"), "");
  EXPECT_EQ(read_as(R"({"text": "a", "id": 1})"), "");
}

TEST(Forms, ANullInTheOnlyFormOfARowIsNamedWithItsLine) {
  const text::TinyModel model;
  const Template tmpl(model.directory());
  const Dataset rows(Table{.name = "f.jsonl",
                           .unit = "line",
                           .rows = {row_of(R"({"prompt": "q", "completion": null})")},
                           .places = {3}});
  EXPECT_EQ(twinkle::error_of([&] { rows.encode(encoder(tmpl)); }),
            "data: f.jsonl line 3: field 'completion' is null; give it a value, or leave the row "
            "out");
  EXPECT_EQ(refusal(R"({"prompt": "q", "chosen": "a", "rejected": null})"),
            "data: field 'rejected' is null; give it a value, or leave the row out");
  for (const char* taken : {R"({"messages": [], "prompt": "q", "completion": null})",
                            R"({"positive": {"messages": []}, "chosen": null, "rejected": 1})",
                            R"({"prompt": "q", "label": null})"})
    EXPECT_EQ(refusal(taken), "no error") << taken;
}

TEST(Forms, TwoReadingsOrAVerdictAreRefusedByName) {
  EXPECT_EQ(refusal(R"({"prompt": "a", "completion": "b", "instruction": "c", "output": "d"})"),
            "data: the row can be instruction, output: read as AlpacaProcessor, or prompt, "
            "completion: read as PromptCompletionProcessor; name one, dataset.map(NAME) or twinkle "
            "train --preprocessor NAME, or leave the other's columns out");
  EXPECT_NE(refusal(R"({"prompt": "a", "completion": "b", "response": "c"})"), "no error");
  EXPECT_EQ(refusal(R"({"prompt": "a", "completion": "b", "label": false})"),
            "data: field 'label' is false, a verdict on the reply, and here every reply is learnt "
            "alike; learn from verdicts with twinkle train --loss kto, or KTOLoss "
            "(docs/preferences.md), or leave the field out");
  EXPECT_NE(refusal(R"({"instruction": "a", "output": "b", "kto_tag": "False"})"), "no error");
  EXPECT_NE(refusal(R"({"prompt": "a", "completion": "b", "label": true})"), "no error");
  EXPECT_EQ(refusal(R"({"prompt": "a", "completion": "b", "label": "news"})"), "no error");
}

// The tokens and labels of rows of a form are those after its preprocessor.
TEST(Forms, RowsAreEncodedAsAfterThePreprocessorThatCouldBeNamed) {
  const TinyModel model;
  const Template tmpl(model.directory());
  const Json turns = boost::json::parse(R"([{"from": "human", "value": "a"},
      {"from": "gpt", "value": "b", "weight": 0}, {"from": "human", "value": "c"},
      {"from": "gpt", "value": "d"}])");
  const auto pair = row_of(R"({"prompt": "a", "chosen": "b", "rejected": "c"})");
  for (const auto& [name, row] : std::vector<std::pair<const char*, Row>>{
           {"AlpacaProcessor", row_of(R"({"instruction": "a", "input": "b", "output": "c",
                "system": "s", "history": [["q", "r"]]})")},
           {"PromptCompletionProcessor", row_of(R"({"query": "a", "response": "b"})")},
           {"ShareGPTProcessor", {{"conversations", turns}}},
           {"ShareGPTProcessor", {{"messages", turns}}},
           {"PreferenceProcessor", pair}}) {
    const Dataset rows = rows_of({row});
    const Dataset named = rows.map(make_preprocessor(name)).encode(encoder(tmpl));
    EXPECT_EQ(rows.encode(encoder(tmpl)).row(0), named.row(0)) << name;
    EXPECT_FALSE(why_not(tmpl, row)) << name;
  }
  EXPECT_NE(twinkle::error_of([&] { rows_of({pair}).encode(encoder(tmpl, true)); }), "no error")
      << "the prompt of a reply to come";
  EXPECT_TRUE(why_not(tmpl, row_of(R"({"conversations": [{"from": "judge", "value": "a"}]})")));
}

TEST(Forms, EachFileSaysOnceAsWhatItIsRead) {
  Table table{.name = "semi.csv", .rows = {{{"prompt", "a"}, {"completion", ""}}}};
  table.note = "separated by ';'";
  const Row alpaca = row_of(R"({"instruction": "a", "output": "b"})");
  const Dataset rows = Dataset::concat(
      {Dataset(table), rows_of({alpaca, row_of(R"({"query": "a", "response": ""})"), alpaca}, "b"),
       rows_of({row_of(R"({"messages": []})")}, "c")});
  EXPECT_EQ(readings(rows),
            (std::vector<std::string>{
                "semi.csv: separated by ';'; prompt, completion: read as PromptCompletionProcessor",
                "b: 2 of 3 rows: instruction, output: read as AlpacaProcessor; 1 of 3 rows: query, "
                "response: read as PromptCompletionProcessor"}));
}

TEST(Forms, EmptyRepliesAndCallsThatTheTemplateDoesNotKnowAreRemarkedUpon) {
  const TinyModel model;
  const Template tmpl(model.directory());
  const auto remarked = [&](Rows rows) {
    return remarks(rows_of(std::move(rows)).encode(encoder(tmpl)), tmpl);
  };
  const Row full = row_of(R"({"prompt": "a", "completion": "b"})");
  const Row empty = row_of(R"({"prompt": "a", "completion": ""})");
  EXPECT_EQ(remarked({full}), std::vector<std::string>());
  EXPECT_EQ(remarked({full, empty, full}),
            std::vector<std::string>{"memory: 1 of 3 replies is empty"});
  EXPECT_EQ(remarked({row_of(R"({"prompt": "a", "chosen": "", "rejected": ""})")}),
            std::vector<std::string>{"memory: 2 of 2 replies are empty"});
  EXPECT_EQ(remarked({row_of(R"({"conversations": [{"from": "human", "value": "a"},
                {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {}}"},
                {"from": "observation", "value": "1"}, {"from": "gpt", "value": "b"}]})")}),
            std::vector<std::string>{"memory: 1 of 2 replies is of tool calls: the chat template "
                                     "knows none, so they are learnt as JSON"});
}

// LLaMA-Factory's own demonstration files.
class RealRows : public testing::Test {
 protected:
  static Dataset read(const char* name) {
    const std::filesystem::path folder = std::getenv("TWINKLE_TEST_DATA");
    return Dataset::read(folder / name);
  }
  // Rows from all over the file.
  static Dataset some(const Dataset& rows, int64_t count) {
    std::vector<int64_t> indices;
    for (int64_t i = 0; i < count; ++i) indices.push_back(i * rows.size() / count);
    return rows.slice(indices);
  }
  static bool is_there(const char* name) {
    const char* folder = std::getenv("TWINKLE_TEST_DATA");
    return folder && std::filesystem::exists(std::filesystem::path(folder) / name);
  }
  const TinyModel model_;
  const Template tmpl_{model_.directory(), {.max_length = 0}};
};

TEST_F(RealRows, TheDemonstrationFilesAreRead) {
  for (const auto& [name, form, count] :
       {std::tuple{"alpaca_en_demo.json", "instruction, output: read as AlpacaProcessor", 999},
        {"dpo_en_demo.json", "chosen, rejected: read as PreferenceProcessor", 299},
        {"glaive_toolcall_en_demo.json", "conversations: read as ShareGPTProcessor", 300},
        {"self_cognition.jsonl", "query, response: read as PromptCompletionProcessor", 91}}) {
    if (!is_there(name)) GTEST_SKIP() << "the folder of TWINKLE_TEST_DATA has no " << name;
    const Dataset rows = read(name);
    EXPECT_EQ(rows.size(), count);
    ASSERT_EQ(readings(rows).size(), 1u);
    EXPECT_TRUE(readings(rows)[0].ends_with(std::string(": ") + form)) << readings(rows)[0];
    EXPECT_EQ(some(rows, 30).encode(encoder(tmpl_)).size(), 30);
  }
}

TEST_F(RealRows, OfAPairTheReplyAloneIsTrained) {
  if (!is_there("dpo_en_demo.json")) GTEST_SKIP() << "no dpo_en_demo.json in TWINKLE_TEST_DATA";
  const Dataset rows = some(read("dpo_en_demo.json"), 20), encoded = rows.encode(encoder(tmpl_));
  for (int64_t i = 0; i < rows.size(); ++i) {
    for (const auto& [side, column] : {std::pair{"positive", "chosen"}, {"negative", "rejected"}}) {
      std::vector<int64_t> trained;
      for (const int32_t label : integers(encoded.row(i).at(side).as_object(), "labels"))
        if (label != -100) trained.push_back(label);
      const std::string said(rows.row(i).at(column).at("value").as_string());
      ASSERT_EQ(tmpl_.decode(trained), said + "</s>\n") << i;
    }
  }
}

TEST_F(RealRows, AllOfATextIsTrainedOnce) {
  for (const char* name : {"c4_demo.jsonl", "wiki_demo.txt"}) {
    if (!is_there(name)) GTEST_SKIP() << "the folder of TWINKLE_TEST_DATA has no " << name;
    const Dataset rows = some(read(name), 3), encoded = encode_texts(rows, tmpl_.tokenizer(), 4096);
    std::vector<int64_t> expected, ids, labels;
    for (const Row& row : rows.rows()) {
      const auto text = tmpl_.tokenizer().encode(std::string(row.at("text").as_string()));
      expected.insert(expected.end(), text.begin(), text.end());
      expected.push_back(259);
    }
    for (const Row& row : encoded.rows()) {
      for (const int32_t id : integers(row, "input_ids")) ids.push_back(id);
      for (const int32_t label : integers(row, "labels")) labels.push_back(label);
    }
    EXPECT_EQ(ids, expected);
    expected.erase(expected.begin());
    expected.push_back(-100);
    EXPECT_EQ(labels, expected);
  }
}

TEST_F(RealRows, RowsWithAVerdictAreRefused) {
  if (!is_there("kto_en_demo.json")) GTEST_SKIP() << "no kto_en_demo.json in TWINKLE_TEST_DATA";
  const Dataset rows = read("kto_en_demo.json");
  int64_t refused = 0, desirable = 0;
  for (const Row& row : rows.rows()) {
    refused += twinkle::error_of([&] { refuse_verdict(row); }) != "no error";
    desirable += verdict_of(row).value() ? 1 : 0;
  }
  EXPECT_EQ(refused, 300);
  EXPECT_EQ(desirable, 150);
}

}  // namespace
}  // namespace twinkle::data
