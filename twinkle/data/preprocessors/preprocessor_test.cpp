#include "twinkle/data/preprocessors/preprocessor.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/data/rows/csv.h"
#include "twinkle/text/tools/scan.h"

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
            "assistant, system, tool, observation or function_call");
}

// LLaMA-Factory's form, data/README.md of its repository.
TEST(Preprocessor, ShareGptTurnsOfToolsAreCallsAndResults) {
  const Row row = run("ShareGPTProcessor", {{"conversations", parsed(R"([
      {"from": "human", "value": "q"},
      {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
      {"from": "observation", "value": "{\"y\": 2}"},
      {"from": "function_call", "value": [{"name": "f"}, {"name": "g"}], "weight": 0},
      {"from": "gpt", "value": "a"}])")},
                                            {"tools", R"([{"name": "f", "parameters": {}}])"}});
  EXPECT_EQ(Json(row), parsed(R"({
    "messages": [
      {"role": "user", "content": "q"},
      {"role": "assistant", "tool_calls": [
        {"type": "function", "function": {"name": "f", "arguments": {"x": 1}}}]},
      {"role": "tool", "content": "{\"y\": 2}"},
      {"role": "assistant", "weight": 0, "tool_calls": [
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "g"}}]},
      {"role": "assistant", "content": "a"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]})"));
  EXPECT_EQ(
      row_error("ShareGPTProcessor",
                {{"conversations", parsed(R"([{"from": "function_call", "value": "call f"}])")}}),
      "data: field 'value' of a turn of function_call is \"call f\", expected {\"name\": ..., "
      "\"arguments\": ...}, or a list of them, as JSON text");
  const Json calls = parsed(R"([{"type": "function", "function": {"name": "f"}}])");
  for (const char* who : {"from", "role"}) {
    const Row turn{
        {who, "gpt"}, {who[0] == 'f' ? "value" : "content", nullptr}, {"tool_calls", calls}};
    const Json made =
        run("ShareGPTProcessor", {{"conversations", JsonArray{turn}}}).at("messages").at(0);
    EXPECT_EQ(made.at("tool_calls"), calls);
    EXPECT_EQ(find(made, "content"), nullptr);
  }
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

TEST(Preprocessor, ClevrIsAPictureAndAQuestionWithTheAnswerBeside) {
  const Row row = run("CLEVRProcessor",
                      {{"image", {{"path", "a.png"}}},
                       {"problem", "How many?"},
                       {"solution", "<think>x</think><answer> 3\u3000\n</answer>"}},
                      {{"system", "s"}});
  EXPECT_EQ(Json(row), parsed(R"({
    "messages": [{"role": "system", "content": "s"},
                 {"role": "user", "content": [{"type": "image", "image": {"path": "a.png"}},
                                              {"type": "text", "text": "How many?"}]}],
    "user_data": [["ground_truth", "3"],
                  ["solution", "<think>x</think><answer> 3\u3000\n</answer>"]]})"));
  for (const char* solution : {"<answer> a ", " <answer> a", "</answer> <answer> a"})
    EXPECT_EQ(run("CLEVRProcessor", {{"image", 1}, {"problem", "q"}, {"solution", solution}})
                  .at("user_data")
                  .at(0)
                  .at(1),
              Json(text::stripped(solution)))
        << "no answer ends";
  EXPECT_EQ(row_error("CLEVRProcessor", {{"problem", "q"}, {"image", nullptr}}),
            "data: field 'image' is missing");
  EXPECT_EQ(row_error("CLEVRProcessor", {{"problem", ""}, {"image", "a"}}),
            "data: field 'problem' is empty, it must be the text of a question");
}

TEST(Preprocessor, OlympiadBenchHasItsPicturesFirstAndItsAnswersJoined) {
  const Row row = run("OlympiadBenchProcessor",
                      {{"question", "x?"},
                       {"context", "Let x > 0."},
                       {"image_9", "b.png"},
                       {"image_1", "a.png"},
                       {"image_2", nullptr},
                       {"final_answer", {"3 ", "", 0.5}},
                       {"solution", {"a", "b"}},
                       {"unit", "cm"},
                       {"is_multiple_answer", true}},
                      {{"language", "en"}});
  EXPECT_EQ(row.at("messages").at(1), parsed(R"({"role": "user", "content": [
    {"type": "image", "image": "a.png"}, {"type": "image", "image": "b.png"},
    {"type": "text", "text": "Context: Let x > 0.\n\nx?"}]})"));
  EXPECT_EQ(row.at("user_data"), parsed(R"([["ground_truth", "3, 0.5 cm"], ["solution", "a\nb"],
    ["is_multiple_answer", "true"], ["subject", "maths"], ["unit", "cm"]])"));
  const Row plain = run("OlympiadBenchProcessor", {{"question", "x?"}, {"subject", "physics"}});
  EXPECT_EQ(plain.at("messages").at(1), Json(message("user", "x?")));
  EXPECT_EQ(plain.at("user_data"), parsed(R"([["ground_truth", ""], ["solution", ""],
    ["is_multiple_answer", "false"], ["subject", "physics"], ["unit", ""]])"));
  EXPECT_EQ(row_error("OlympiadBenchProcessor", {{"question", "x"}}, {{"language", "de"}}),
            "data: OlympiadBenchProcessor argument 'language' is 'de', expected 'zh' or 'en'");
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

// TRL's forms (docs, Dataset formats: preference, with and without an explicit prompt), and
// LLaMA-Factory's (data/README.md: preference datasets of both its formats).
TEST(Preprocessor, PreferencesOfEveryFormAreOnePair) {
  const char* expected = R"({
    "positive": {"messages": [{"role": "user", "content": "q"},
                              {"role": "assistant", "content": "good"}]},
    "negative": {"messages": [{"role": "user", "content": "q"},
                              {"role": "assistant", "content": "bad"}]}})";
  const char* q = R"({"role": "user", "content": "q"})";
  const auto reply = [](const std::string& text) {
    return R"({"role": "assistant", "content": ")" + text + "\"}";
  };
  const std::string good = reply("good"), bad = reply("bad"), user = q;
  for (const std::string& row : std::vector<std::string>{
           R"({"prompt": "q", "chosen": "good", "rejected": "bad"})",
           R"({"prompt": [)" + user + R"(], "chosen": [)" + good + R"(], "rejected": [)" + bad +
               "]}",
           R"({"chosen": [)" + user + "," + good + R"(], "rejected": [)" + user + "," + bad + "]}",
           R"({"prompt": "q", "chosen": [)" + user + "," + good + R"(], "rejected": [)" + user +
               "," + bad + "]}",
           R"({"conversations": [{"from": "human", "value": "q"}], "chosen": {"from": "gpt",
               "value": "good"}, "rejected": {"from": "gpt", "value": "bad"}})",
           R"({"instruction": "q", "input": "", "chosen": "good", "rejected": "bad"})",
           R"({"question": "q", "chosen": "good", "rejected": "bad"})"})
    EXPECT_EQ(Json(run("PreferenceProcessor", parsed(row).as_object())), parsed(expected)) << row;
}

TEST(Preprocessor, ThePromptOfAPairIsNotTrained) {
  const Json chosen = parsed(R"([{"role": "user", "content": "1"},
      {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"},
      {"role": "assistant", "content": "4"}])");
  Json rejected = chosen;
  rejected.at(3).at("content") = "5";
  const Row made =
      run("PreferenceProcessor",
          {{"chosen", chosen}, {"rejected", rejected}, {"tools", R"([{"name": "f"}])"}},
          {{"system", "s"}});
  EXPECT_EQ(made.at("negative").at("messages"), parsed(R"([
      {"role": "system", "content": "s"}, {"role": "user", "content": "1"},
      {"role": "assistant", "content": "2", "weight": 0}, {"role": "user", "content": "3"},
      {"role": "assistant", "content": "5"}])"));
  EXPECT_EQ(made.at("tools"), parsed(R"([{"type": "function", "function": {"name": "f"}}])"));
  const Row exchange{{"prompt", JsonArray(chosen.as_array().begin(), chosen.as_array().end() - 1)},
                     {"completion", JsonArray{chosen.at(3)}}};
  const Json messages = run("PromptCompletionProcessor", exchange).at("messages");
  EXPECT_EQ(messages.at(1).at("weight"), Json(0)) << "TRL trains the completion only";
  EXPECT_EQ(find(messages.at(3), "weight"), nullptr);
}

TEST(Preprocessor, APairWithoutAPromptOrAReplyIsRefused) {
  const auto error = [](const char* row) {
    return row_error("PreferenceProcessor", parsed(row).as_object());
  };
  const std::string no_prompt =
      "data: fields 'chosen' and 'rejected' have no prompt in common; they are two replies to the "
      "field 'prompt', or chats with the same first messages";
  EXPECT_EQ(error(R"({"chosen": "a", "rejected": "b"})"), no_prompt);
  EXPECT_EQ(error(R"({"chosen": [{"role": "user", "content": "1"}],
                      "rejected": [{"role": "user", "content": "2"}]})"),
            no_prompt);
  const char* same = R"({"chosen": [{"role": "user", "content": "1"},
      {"role": "assistant", "content": "2"}], "rejected": [{"role": "user", "content": "1"}]})";
  EXPECT_EQ(error(same), "data: field 'rejected' has no reply of the assistant after the prompt");
  EXPECT_EQ(error(R"({"prompt": "q", "chosen": 5, "rejected": "b"})"),
            "data: field 'chosen' is 5, expected a string; in a CSV file, quote its cells");
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
  EXPECT_EQ(row_error("Nope", {}),
            "data: there is no preprocessor 'Nope'; there are AlpacaProcessor, CLEVRProcessor, "
            "CompetitionMathProcessor, CompetitionMathGRPOProcessor, CountdownProcessor, "
            "EmojiDPOProcessor, GSM8KProcessor, OlympiadBenchProcessor, PreferenceProcessor, "
            "PromptCompletionProcessor, SelfCognitionProcessor, ShareGPTProcessor");
}

}  // namespace
}  // namespace twinkle::data
