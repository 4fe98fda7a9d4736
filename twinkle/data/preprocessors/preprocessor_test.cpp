#include "twinkle/data/preprocessors/preprocessor.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/data/rows/csv.h"

namespace twinkle::data {
namespace {

Row run(std::string_view name, const Row& row, const JsonObject& arguments = {}) {
  return make_preprocessor(name, arguments)(row);
}

std::string row_error(std::string_view name, const Row& row, const JsonObject& arguments = {}) {
  return twinkle::error_of([&] { run(name, row, arguments); });
}

Json parsed(std::string_view text) { return boost::json::parse(text); }

TEST(Preprocessor, SelfCognitionReplacesBothPlaceholdersOnce) {
  const Row row = {{"query", "{{NAME}}?"}, {"response", "I am {{NAME}} by {{AUTHOR}}."}};
  EXPECT_EQ(Json(run("SelfCognitionProcessor", row, {{"model_name", "{{AUTHOR}}"}})),
            parsed(R"({"messages": [{"role": "system", "content": "You are a helpful assistant."},
              {"role": "user", "content": "{{AUTHOR}}?"},
              {"role": "assistant", "content": "I am {{AUTHOR}} by twinkle lab."}]})"));
}

TEST(Preprocessor, Gsm8kKeepsTheNumberAfterTheMark) {
  const Row row = {{"question", "q"}, {"answer", "a <<1+1=2>>\n####  -1,234.5 \n"}};
  EXPECT_EQ(Json(run("GSM8KProcessor", row)),
            parsed(
                R"({"messages": [{"role": "user", "content": "q"}],
              "user_data": [["ground_truth", "-1234.5"]]})"));
  const Row full = run("GSM8KProcessor", row, {{"system", "s"}, {"add_assistant", true}});
  ASSERT_EQ(full.at("messages").as_array().size(), 3u);
  EXPECT_EQ(full.at("messages").as_array()[0], Json(message("system", "s")));
  EXPECT_EQ(full.at("messages").as_array()[2],
            Json(message("assistant", "a <<1+1=2>>\n####  -1,234.5 \n")));
  EXPECT_EQ(row_error("GSM8KProcessor", {{"question", "q"}, {"answer", "2"}}),
            "data: field 'answer' has no '####', after which its number must come");
  EXPECT_EQ(row_error("GSM8KProcessor", {{"question", "q"}, {"answer", "2 #### "}}),
            "data: field 'answer' has nothing after its '####'");
}

TEST(Preprocessor, AlpacaJoinsInstructionAndInput) {
  const auto user = [](const Row& row) {
    return run("AlpacaProcessor", row).at("messages").as_array()[0];
  };
  EXPECT_EQ(user({{"instruction", "a"}, {"input", "b"}, {"output", "c"}}),
            Json(message("user", "a\nb")));
  EXPECT_EQ(user({{"instruction", "a"}, {"input", ""}, {"output", "c"}}),
            Json(message("user", "a")));
  EXPECT_EQ(user({{"instruction", "a"}, {"input", nullptr}, {"output", "c"}}),
            Json(message("user", "a")));
}

TEST(Preprocessor, SystemAndHistoryAreTheMessagesBeforeAnExchange) {
  const Row columns = {{"system", "s"}, {"history", JsonArray{JsonArray{"p", "o"}}}};
  const Json all({message("system", "s"), message("user", "p"), message("assistant", "o"),
                  message("user", "q"), message("assistant", "a")});
  const auto with = [&columns](Row row) {
    for (const auto& column : columns) row[column.key()] = column.value();
    return row;
  };
  EXPECT_EQ(run("AlpacaProcessor", with({{"instruction", "q"}, {"output", "a"}})).at("messages"),
            all);
  const Row exchange = with({{"query", "q"}, {"response", "a"}});
  EXPECT_EQ(run("PromptCompletionProcessor", exchange).at("messages"), all);
  EXPECT_EQ(run("PromptCompletionProcessor", exchange, {{"system", "t"}}).at("messages"), all);
  const Row pair = run("EmojiDPOProcessor", with({{"prompt", "q"}, {"yes", "a"}, {"no", "b"}}),
                       {{"chosen_key", "yes"}, {"rejected_key", "no"}});
  EXPECT_EQ(pair.at("positive").at("messages"), all);
  EXPECT_EQ(row_error("AlpacaProcessor",
                      {{"instruction", "q"}, {"output", "a"}, {"history", JsonArray{"p"}}}),
            "text: field 'history' holds \"p\", expected a list of [question, answer]");
}

TEST(Preprocessor, ShareGptTurnsBecomeMessages) {
  const Row row =
      run("ShareGPTProcessor",
          {{"system", "s"}, {"conversations", parsed(R"([{"from": "human", "value": "a"},
                                                    {"from": "gpt", "value": "b"}])")}});
  EXPECT_EQ(row.at("messages"),
            Json({message("system", "s"), message("user", "a"), message("assistant", "b")}));
  EXPECT_EQ(run("ShareGPTProcessor", {{"messages", parsed(R"([{"role": "human", "content": "a"},
                                         {"role": "gpt", "content": "b"}])")}})
                .at("messages"),
            Json({message("user", "a"), message("assistant", "b")}));
  EXPECT_EQ(
      row_error("ShareGPTProcessor", {{"text", "a"}}),
      "data: field 'conversations' is missing or not a list of turns with 'from' and 'value'");
  EXPECT_EQ(row_error("ShareGPTProcessor", {{"conversations", JsonArray{1}}}),
            "data: field 'conversations' holds 1, expected an object with 'from' and 'value'");
  EXPECT_EQ(row_error("ShareGPTProcessor",
                      {{"conversations", parsed(R"([{"from": "judge", "value": "a"}])")}}),
            "data: field 'from' of a turn is 'judge', expected human, user, gpt, model, bot, "
            "assistant, system or tool");
}

TEST(Preprocessor, ShareGptTurnsKeepWhatElseTheySay) {
  const Row turns = {{"conversations", parsed(R"([
      {"from": "human", "value": "q"}, {"from": "gpt", "value": "a", "weight": 0, "loss": false},
      {"role": "bot", "content": "b", "tool_calls": [1], "reasoning_content": "r"}])")}};
  EXPECT_EQ(run("ShareGPTProcessor", turns).at("messages"), parsed(R"([
      {"role": "user", "content": "q"},
      {"role": "assistant", "content": "a", "weight": 0, "loss": false},
      {"role": "assistant", "content": "b", "tool_calls": [1], "reasoning_content": "r"}])"));
}

TEST(Preprocessor, ASystemPromptIsNotSaidTwice) {
  const Row lists = {{"prompt", JsonArray{message("system", "s"), message("user", "q")}},
                     {"completion", JsonArray{message("assistant", "a")}}};
  const Row turns = {{"conversations", parsed(R"([{"from": "system", "value": "s"},
      {"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}])")}};
  const Json all({message("system", "s"), message("user", "q"), message("assistant", "a")});
  for (const auto& [name, given] :
       {std::pair{"PromptCompletionProcessor", lists}, {"ShareGPTProcessor", turns}}) {
    Row row = given;
    row["system"] = "s";
    EXPECT_EQ(run(name, row).at("messages"), all) << name;
    row["system"] = "t";
    EXPECT_EQ(row_error(name, row),
              "text: field 'system' is \"t\", and messages begin with another system message, "
              "\"s\"; leave one of the two out")
        << name;
    row = given;
    row["history"] = JsonArray{JsonArray{"p", "o"}};
    EXPECT_EQ(run(name, row).at("messages"),
              Json({message("system", "s"), message("user", "p"), message("assistant", "o"),
                    message("user", "q"), message("assistant", "a")}))
        << name;
  }
  EXPECT_EQ(run("PromptCompletionProcessor", lists, {{"system", "t"}}).at("messages"), all);
}

TEST(Preprocessor, PromptsAndCompletionsAreFoundByTheirUsualNamesOrThoseThatAreGiven) {
  const Json exchange({message("user", "a"), message("assistant", "b")});
  const char* name = "PromptCompletionProcessor";
  EXPECT_EQ(run(name, {{"prompt", "a"}, {"completion", "b"}}).at("messages"), exchange);
  EXPECT_EQ(run(name, {{"prompt", "a"}, {"response", "b"}}).at("messages"), exchange);
  EXPECT_EQ(run(name, {{"query", "a"}, {"response", "b"}}).at("messages"), exchange);
  EXPECT_EQ(run(name, {{"question", "a"}, {"answer", "b"}}).at("messages"), exchange);
  EXPECT_EQ(
      run(name, {{"x", "a"}, {"y", "b"}}, {{"prompt", "x"}, {"completion", "y"}}).at("messages"),
      exchange);
  const Row lists = {{"prompt", JsonArray{message("user", "a")}},
                     {"completion", JsonArray{message("assistant", "b")}}};
  EXPECT_EQ(run(name, lists).at("messages"), exchange);
  EXPECT_EQ(run(name, lists, {{"system", "s"}}).at("messages").as_array().size(), 3u);
  EXPECT_EQ(row_error(name, {{"text", "a"}}), "data: field 'prompt' is missing; the row has text");
}

TEST(Preprocessor, CompetitionMathIsAnExchangeOrAPromptWithItsSolutionKept) {
  const Row row = {{"problem", "p"}, {"solution", "s"}};
  EXPECT_EQ(run("CompetitionMathProcessor", row).at("messages"),
            Json({message("user", "p"), message("assistant", "s")}));
  const Row grpo = run("CompetitionMathGRPOProcessor", row);
  EXPECT_EQ(grpo.at("messages").as_array().back(), Json(message("user", "p")));
  EXPECT_EQ(grpo.at("user_data"), parsed(R"([["solution", "s"]])"));
}

TEST(Preprocessor, CountdownKeepsTargetAndNumbersAsPairs) {
  const Row row = run("CountdownProcessor", {{"nums", {3, 4}}, {"target", 7}});
  EXPECT_EQ(row.at("user_data"), parsed(R"([["target", 7], ["nums", [3, 4]]])"));
  const std::string prompt(row.at("messages").as_array()[1].at("content").as_string());
  EXPECT_NE(prompt.find("makes 7 from the numbers [3, 4]"), prompt.npos);
  EXPECT_EQ(row_error("CountdownProcessor", {{"target", 7}}), "data: field 'nums' is missing");
  EXPECT_EQ(row_error("CountdownProcessor", {{"nums", 3}, {"target", 7}}),
            "data: field 'nums' is 3, expected a list of numbers");
  EXPECT_EQ(row_error("CountdownProcessor", {{"nums", JsonArray{"x"}}, {"target", 7}}),
            "data: field 'nums' holds \"x\", expected numbers");
  EXPECT_EQ(row_error("CountdownProcessor", {{"nums", {3}}, {"target", "7"}}),
            "data: field 'target' is \"7\", expected a number");
}

TEST(Preprocessor, EmojiDpoMakesTwoTrajectories) {
  const Row row = run("EmojiDPOProcessor", {{"prompt", "p"}, {"yes", "y"}, {"answer_en", "n"}},
                      {{"chosen_key", "yes"}, {"system", "s"}});
  EXPECT_EQ(Json(row), parsed(R"({
    "positive": {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "p"},
                              {"role": "assistant", "content": "y"}]},
    "negative": {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "p"},
                              {"role": "assistant", "content": "n"}]}})"));
}

TEST(Preprocessor, NumbersOfACsvFileAreTextInTheColumnsThatItReads) {
  const Row row = parse_csv("prompt,answer_zh,answer_en\n1+3,4,5e0\n", "f").rows[0];
  const Row pair = run("EmojiDPOProcessor", row);
  EXPECT_EQ(pair.at("positive").at("messages").as_array().back(), Json(message("assistant", "4")));
  EXPECT_EQ(pair.at("negative").at("messages").as_array().back(),
            Json(message("assistant", "5e0")));
}

TEST(Preprocessor, ErrorsNameTheFieldTheArgumentAndTheKnownNames) {
  EXPECT_EQ(row_error("AlpacaProcessor", {{"query", "q"}}),
            "data: field 'instruction' is missing; the row has query");
  EXPECT_EQ(row_error("AlpacaProcessor", {{"instruction", 5}}),
            "data: field 'instruction' is 5, expected a string; in a CSV file, quote its cells");
  EXPECT_EQ(row_error("AlpacaProcessor", {{"instruction", JsonArray{5}}}),
            "data: field 'instruction' is [5], expected a string");
  EXPECT_EQ(row_error("GSM8KProcessor", {}, {{"sytem", "s"}}),
            "data: GSM8KProcessor has no argument 'sytem'; it has system, add_assistant");
  EXPECT_EQ(row_error("AlpacaProcessor", {}, {{"x", "s"}}),
            "data: AlpacaProcessor has no argument 'x'; it has none");
  EXPECT_EQ(row_error("GSM8KProcessor", {}, {{"add_assistant", 1}}),
            "data: GSM8KProcessor argument 'add_assistant' is 1, expected true or false");
  EXPECT_EQ(row_error("GSM8KProcessor", {}, {{"system", 1}}),
            "data: GSM8KProcessor argument 'system' is 1, expected a string");
  EXPECT_EQ(
      row_error("Nope", {}),
      "data: there is no preprocessor 'Nope'; there are AlpacaProcessor, CompetitionMathProcessor, "
      "CompetitionMathGRPOProcessor, CountdownProcessor, EmojiDPOProcessor, GSM8KProcessor, "
      "PromptCompletionProcessor, SelfCognitionProcessor, ShareGPTProcessor");
}

}  // namespace
}  // namespace twinkle::data
