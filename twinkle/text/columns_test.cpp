#include "twinkle/text/columns.h"

#include <gtest/gtest.h>

#include <set>

#include "twinkle/base/error_for_test.h"
#include "twinkle/text/forms.h"
#include "twinkle/text/messages.h"

namespace twinkle::text {
namespace {

Json row_of(std::string_view more, std::string_view messages = R"([
    {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])") {
  return boost::json::parse("{\"messages\": " + std::string(messages) + ", " + std::string(more) +
                            "}");
}

std::string columns_error(const Json& row) {
  return twinkle::error_of([&] { prepare(row, {}); });
}

TEST(Columns, ASystemColumnIsTheFirstMessage) {
  const Prepared made = prepare(row_of(R"("system": "s")"), {.default_system = "d"});
  ASSERT_EQ(made.messages.as_array().size(), 3u);
  EXPECT_EQ(made.messages.as_array()[0], (Json{{"role", "system"}, {"content", "s"}}));
  EXPECT_EQ(made.trained, std::vector<size_t>{2});
  const Json empty = row_of(R"("system": "", "history": [], "functions": null, "id": 7)");
  EXPECT_EQ(prepare(empty, {}).messages.as_array().size(), 2u);
}

TEST(Columns, KeyRoundsCountTheMessagesOfTheRowWithoutItsSystemColumn) {
  const Json row = row_of(R"("system": "s", "user_data": {"key_rounds": [1]})");
  EXPECT_EQ(prepare(row, {}).trained, std::vector<size_t>{2});
}

TEST(Columns, OneSystemMessageIsNotTakenForAnother) {
  const char* messages =
      R"([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}])";
  EXPECT_EQ(prepare(row_of(R"("system": "s")", messages), {}).messages.as_array().size(), 2u);
  EXPECT_EQ(columns_error(row_of(R"("system": "t")", messages)),
            "text: field 'system' is \"t\", and messages begin with another system message, "
            "\"s\"; leave one of the two out");
  EXPECT_EQ(columns_error(row_of(R"("system": 5)")),
            "text: field 'system' is 5, expected a string");
}

TEST(Columns, ASystemPromptIsASystemColumn) {
  EXPECT_EQ(prepare(row_of(R"("system_prompt": "s")"), {}).messages.at(0).at("content"), "s");
  EXPECT_EQ(
      prepare(row_of(R"("system_prompt": "s", "system": "s")"), {}).messages.at(0).at("content"),
      "s");
  EXPECT_EQ(columns_error(row_of(R"("system_prompt": "s", "system": "t")")),
            "text: field 'system_prompt' is \"s\", and field 'system' is another, \"t\"; leave one "
            "of the two out");
}

TEST(Columns, HistoryMustBeAmongTheMessages) {
  EXPECT_EQ(columns_error(row_of(R"("history": [["q", "a"]])")), "no error");
  EXPECT_EQ(columns_error(row_of(R"("history": [["p", "o"]])")),
            "text: field 'history' has turns that messages do not begin with; put them there, and "
            "leave the field out");
  EXPECT_EQ(columns_error(row_of(R"("history": [["p"]])")),
            "text: field 'history' holds [\"p\"], expected a list of [question, answer]");
  EXPECT_EQ(columns_error(row_of(R"("history": "p")")),
            "text: field 'history' is \"p\", expected a list of [question, answer]");
}

TEST(Columns, WhatATemplateWouldReadIsRefusedByName) {
  EXPECT_EQ(columns_error(row_of(R"("function_call": {"name": "f"})")),
            "text: field 'function_call' is {\"name\":\"f\"}, which is not read; a call belongs to "
            "an assistant's message, as tool_calls; put it there, or leave it out");
  EXPECT_EQ(columns_error(row_of(R"("functions": [{"name": "f"}])")),
            "text: field 'functions' is [{\"name\":\"f\"}], which is not read; name it tools, a "
            "list of {\"type\": \"function\", \"function\": {...}}, or leave it out");
}

TEST(Columns, FalseIsKnownInEveryFormThatTablesHave) {
  for (const char* text :
       {"false", "0", "0.0", "-0.0", "\"0\"", "\"false\"", "\"False\"", "\"FALSE\""})
    EXPECT_EQ(truth(boost::json::parse(text)), false) << text;
  for (const char* text :
       {"true", "1", "-1", "0.5", "null", "[]", "\"\"", "\"1\"", "\"no\"", "\"news\""})
    EXPECT_NE(truth(boost::json::parse(text)), false) << text;
}

TEST(Columns, WeightsOtherThanOneAreRefusedByName) {
  const auto weights = [](std::string_view more) {
    return twinkle::error_of([&] { refuse_weights(row_of(more)); });
  };
  EXPECT_EQ(weights(R"("weight": 0.5)"),
            "text: field 'weight' is 5E-1, and every row is learnt alike; leave out the rows that "
            "are not to be learnt, or, for a loss of your own, give the field another name");
  for (const char* refused :
       {R"("loss": false)", R"("train": 0)", R"("weight": 0)", R"("weight": false)",
        R"("weight": "0")", R"("loss": "False")", R"("train": "FALSE")"})
    EXPECT_NE(weights(refused), "no error") << refused;
  EXPECT_EQ(weights(R"("weight": 1.0, "loss": true, "train": 1)"), "no error");
  EXPECT_EQ(weights(R"("weight": "10 kg", "loss": "hinge", "train": "ICE 104")"), "no error");
}

// A column of a CSV file is text where one of its cells is empty.
TEST(Columns, WeightsThatAreTextsCountAsWhatIsWritten) {
  const auto weights = [](std::string_view more) {
    return twinkle::error_of([&] { refuse_weights(row_of(more)); });
  };
  EXPECT_TRUE(weights(R"("weight": "0")")
                  .starts_with("text: field 'weight' is \"0\", and every row is learnt alike"));
  for (const char* refused : {R"("train": "false")", R"("loss": "False")", R"("weight": "0.5")"})
    EXPECT_NE(weights(refused), "no error") << refused;
  for (const char* taken : {R"("weight": "")", R"("weight": "1")", R"("weight": "1.0")",
                            R"("train": "true", "loss": "True")"})
    EXPECT_EQ(weights(taken), "no error") << taken;
}

std::string forms(const std::set<std::string_view>& columns) {
  std::string out;
  for (const Form& form : forms_of([&](std::string_view name) { return columns.contains(name); }))
    out += form.listed() + ": " + std::string(form.preprocessor) + "\n";
  return out;
}

TEST(Forms, AreKnownByTheirColumns) {
  EXPECT_EQ(forms({"instruction", "input", "output", "text"}),
            "instruction, output: AlpacaProcessor\n");
  EXPECT_EQ(forms({"conversations", "tools"}), "conversations: ShareGPTProcessor\n");
  EXPECT_EQ(forms({"prompt", "completion", "label"}),
            "prompt, completion: PromptCompletionProcessor\n");
  EXPECT_EQ(forms({"query", "response", "tag"}), "query, response: PromptCompletionProcessor\n");
  EXPECT_EQ(forms({"question", "answer"}), "question, answer: PromptCompletionProcessor\n");
  EXPECT_EQ(forms({"Question", "Answer", "text"}), "");
}

TEST(Forms, ThePromptOfAPairIsNoFormOfItsOwnButAnotherReplyIs) {
  EXPECT_EQ(forms({"conversations", "chosen", "rejected"}),
            "chosen, rejected: PreferenceProcessor\n");
  EXPECT_EQ(forms({"prompt", "chosen", "rejected"}), "chosen, rejected: PreferenceProcessor\n");
  EXPECT_EQ(forms({"prompt", "response", "chosen", "rejected"}),
            "chosen, rejected: PreferenceProcessor\nprompt, response: "
            "PromptCompletionProcessor\n");
}

}  // namespace
}  // namespace twinkle::text
