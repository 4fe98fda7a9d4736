#include "twinkle/text/messages.h"

#include <gtest/gtest.h>

#include "twinkle/text/tiny_model_test.h"

namespace twinkle::text {
namespace {

Prepared prepare_text(const std::string& row, const MessageOptions& options = {}) {
  return prepare(parse_json(row, "row"), options);
}

// The messages of a row after preparation, as JSON text.
std::string messages(const std::string& row, const MessageOptions& options = {}) {
  return boost::json::serialize(prepare_text(row, options).messages);
}

std::string error(const std::string& row) {
  return error_of([&] { prepare_text(row); });
}

TEST(Prepare, PutsTheDefaultSystemMessageBeforeAFirstUserMessage) {
  const MessageOptions options{.default_system = "Be brief."};
  EXPECT_EQ(messages(R"({"messages": [{"role": "user", "content": "hi"}]})", options),
            R"([{"role":"system","content":"Be brief."},{"role":"user","content":"hi"}])");
  const std::string own = R"([{"role":"system","content":"x"},{"role":"user","content":"hi"}])";
  EXPECT_EQ(messages(R"({"messages":)" + own + "}", options), own);
}

TEST(Prepare, DropsNullsAndJoinsTextParts) {
  const std::string row = R"({"messages": [{"role": "user", "name": null, "content":
      [{"type": "text", "text": "a", "image": null}, "b"]}]})";
  EXPECT_EQ(messages(row), R"([{"role":"user","content":"ab"}])");
  EXPECT_EQ(
      messages(row, {.takes_parts = true}),
      R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])");
}

TEST(Prepare, PutsReasoningWhereTheTemplateReadsIt) {
  const std::string tags =
      R"({"messages":[{"role":"assistant","content":"<think>\nwhy\n</think>\n\nso"}]})";
  EXPECT_EQ(messages(tags, {.reads_reasoning = true}),
            R"([{"role":"assistant","content":"so","reasoning_content":"why"}])");
  EXPECT_EQ(messages(tags), R"([{"role":"assistant","content":"<think>\nwhy\n</think>\n\nso"}])");
  const Prepared field =
      prepare_text(R"({"messages":[{"role":"assistant","content":"so","reasoning":"why"}]})");
  const Json& message = field.messages.get_array()[0];
  EXPECT_EQ(message.at("content"), "<think>\nwhy\n</think>\n\nso");
  EXPECT_EQ(message.at("thinking"), "why");
  EXPECT_EQ(message.at("reasoning_content"), "why");
}

TEST(Prepare, ReadsToolsAndToolCallsThatAreJsonTexts) {
  const std::string row = R"({
    "tools": "[{\"name\": \"f\"}]",
    "messages": [{"role": "assistant", "tool_calls":
        [{"function": {"name": "f", "arguments": "{\"x\": 1}"}},
         {"name": "g", "arguments": "5"}]}]})";
  EXPECT_EQ(boost::json::serialize(prepare_text(row).tools), R"([{"name":"f"}])");
  EXPECT_EQ(messages(row),
            R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"x":1}}},)"
            R"({"name":"g","arguments":"5"}]}])");
  EXPECT_EQ(
      messages(row, {.takes_argument_text = true}),
      R"([{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\"x\": 1}"}},)"
      R"({"name":"g","arguments":"5"}]}])");
}

TEST(Prepare, LeavesAContentAsItIsBesideToolCalls) {
  const std::string calls = R"("tool_calls":[{"name":"f"}])";
  const auto list = [](const std::string& fields) {
    return R"([{"role":"assistant",)" + fields + "}]";
  };
  const auto row = [&](const std::string& fields) {
    return R"({"messages":)" + list(fields) + "}";
  };
  EXPECT_EQ(messages(row(calls)), list(calls));
  EXPECT_EQ(messages(row(R"("content":"",)" + calls)), list(R"("content":"",)" + calls));
  const std::string null = R"("content":null)";
  EXPECT_EQ(messages(row(null + "," + calls)), list(calls));
  const MessageOptions options{.absent_content = nullptr};
  EXPECT_EQ(messages(row(calls), options), list(calls + "," + null));
  EXPECT_EQ(messages(row(calls + "," + null), options), list(calls + "," + null));
  EXPECT_EQ(messages(row(calls), {.absent_content = ""}), list(calls + R"(,"content":"")"));
}

TEST(Prepare, ChoosesTheTurnsToTrain) {
  const std::string list = R"("messages": [{"role":"user","content":"1"},
      {"role":"assistant","content":"2"}, {"role":"user","content":"3"},
      {"role":"assistant","content":"4"}])";
  using Indices = std::vector<size_t>;
  EXPECT_EQ(prepare_text("{" + list + "}").trained, (Indices{1, 3}));
  EXPECT_EQ(prepare_text(R"({"user_data": [["key_rounds", "[3]"]], )" + list + "}").trained,
            (Indices{3}));
  EXPECT_EQ(prepare_text(R"({"user_data": {"key_rounds": [1, 2]}, )" + list + "}",
                         {.default_system = "shifts by one"})
                .trained,
            (Indices{2}));
  EXPECT_EQ(error(R"({"user_data": {"key_rounds": [4]}, )" + list + "}"),
            "text: field 'user_data.key_rounds' holds 4, the row has messages 0 to 3");
}

TEST(Prepare, LeavesOutTheTurnsThatSayIt) {
  const auto of = [](const std::string& first, const std::string& second) {
    return R"({"messages": [{"role":"user","content":"1","weight":0},
      {"role":"assistant","content":"2",)" +
           first + R"(}, {"role":"user","content":"3"},
      {"role":"assistant","content":"4",)" +
           second + "}]}";
  };
  using Indices = std::vector<size_t>;
  for (const char* no : {R"("weight":0)", R"("weight":0.0)", R"("loss":false)", R"("train":false)",
                         R"("training":"False")", R"("loss_weight":"0")", R"("trainable":false)",
                         R"("do_train":false)", R"("loss_mask":0)"}) {
    const Prepared prepared = prepare_text(of(no, R"("weight":1,"loss":null)"));
    EXPECT_EQ(prepared.trained, (Indices{3})) << no;
    EXPECT_TRUE(prepared.is_limited) << no;
  }
  EXPECT_FALSE(prepare_text(of(R"("weight":1.0)", R"("train":true)")).is_limited);
  EXPECT_EQ(error(of(R"("weight":0.5)", R"("x":1)")),
            "text: field 'messages[1].weight' is 5E-1, it must be 0 or 1, true or false");
}

TEST(Prepare, TakesFieldsThatSayNothing) {
  const auto with = [](const std::string& message, const std::string& row) {
    return R"({"messages": [{"role":"user","content":"1"}, {"role":"assistant","content":"2")" +
           message + "}]" + row + "}";
  };
  for (const char* said : {R"("function_call":{})", R"("function_call":"")", R"("mask":false)",
                           R"("mask":0)", R"("masked":false)", R"("train_detail":[])"})
    EXPECT_EQ(error(with("," + std::string(said), "")), "no error") << said;
  const Prepared empty = prepare_text(with("", R"(, "tools": "", "chat_template_kwargs": "")"));
  EXPECT_EQ(empty.tools, Json());
  EXPECT_EQ(empty.variables, JsonObject());
}

TEST(Prepare, PassesOnWhatARowGivesTheTemplate) {
  const std::string list = R"("messages": [{"role":"user","content":"1"}])";
  EXPECT_EQ(
      prepare_text(R"({"chat_template_kwargs": {"builtin_tools": ["a"], "x": null}, )" + list + "}")
          .variables,
      (JsonObject{{"builtin_tools", JsonArray{"a"}}}));
  EXPECT_EQ(error(R"({"chat_template_kwargs": {"tools": []}, )" + list + "}"),
            "text: field 'chat_template_kwargs.tools' is not for a row to say; take it out");
  EXPECT_EQ(error(R"({"chat_template_kwargs": 1, )" + list + "}"),
            "text: field 'chat_template_kwargs' is not an object of names that the template reads");
}

TEST(Prepare, RefusesOtherFormsOfChatsThatWouldBeLost) {
  const auto message = [](const std::string& field) {
    return error(R"({"messages": [{"role":"assistant","content":"1",)" + field + "}]}");
  };
  EXPECT_TRUE(message(R"("function_call":{"name":"f"})")
                  .starts_with("text: field 'messages[0].function_call' is the old form of calls; "
                               "write 'tool_calls', "));
  for (const char* name : {"mask", "masked", "train_detail"})
    EXPECT_TRUE(message('"' + std::string(name) + "\":1")
                    .starts_with("text: field 'messages[0]." + std::string(name) + "' is not read"))
        << name;
}

TEST(Prepare, RefusesBadRowsByFieldAndValue) {
  for (const char* value : {"5", "true", "null"})
    EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": "a"},
        {"role": "assistant", "content": )" +
                    std::string(value) + "}]}"),
              "text: field 'messages[1].content' is " + std::string(value) + ", it must be a text");

  for (const char* role : {"user", "assistant", "system"})
    EXPECT_EQ(error(R"({"messages": [{"role": ")" + std::string(role) +
                    R"(", "content": {"type": "text", "text": "a"}}]})"),
              "text: field 'messages[0].content' is {\"type\":\"text\",\"text\":\"a\"}, it must be "
              "a text, or a list of parts");
  EXPECT_EQ(error(R"({"messages": [{"role": "tool", "content": {"t": 21}}]})"), "no error");

  EXPECT_EQ(error("{}"), "text: field 'messages' is missing");
  EXPECT_EQ(error(R"({"messages": null})"), "text: field 'messages' is missing");
  EXPECT_EQ(error(R"({"instruction": "a", "input": "", "output": "b"})"),
            "text: field 'messages' is missing; the row has instruction, input, output: "
            "AlpacaProcessor makes messages of them, dataset.map('AlpacaProcessor') or twinkle "
            "train --preprocessor AlpacaProcessor");
  EXPECT_EQ(error(R"({"role": "user", "content": "hi"})"),
            "text: field 'messages' is missing; this is one chat's list of messages: pass "
            "[{\"messages\": [...]}]");
  EXPECT_EQ(error(R"({"text": "a"})"),
            "text: field 'messages' is missing; the row has text: texts are for pretraining, "
            "twinkle train --loss pretrain; or make messages of it, "
            R"([{"role": "user", "content": ...}, ...])");
  EXPECT_TRUE(error(R"({"a": "b", "c": "d"})")
                  .ends_with("; if they are two of its columns, with "
                             "dataset.map('PromptCompletionProcessor', "
                             "init_args={'prompt': NAME, 'completion': NAME}) or twinkle train "
                             "--columns NAME=prompt,NAME=completion"));
  EXPECT_EQ(error(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"),
            "text: field 'messages' is missing; the row has prompt, chosen, rejected: pairs are "
            "for preference optimization, see docs/preferences.md");
  for (const char* row : {R"({"conversations": []})", R"({"query": 1, "response": 2})",
                          R"({"prompt": 1, "response": 2})"})
    EXPECT_NE(error(row).find("Processor makes messages of them"), std::string::npos) << row;
  EXPECT_EQ(error(R"({"messages": "hi"})"), "text: field 'messages' is not a list");
  EXPECT_EQ(error(R"({"messages": []})"),
            "text: field 'messages' is empty, it must hold at least one message");
  EXPECT_EQ(error(R"({"messages": ["hi"]})"),
            "text: field 'messages[0]' is not an object with role and content");
  EXPECT_EQ(error(R"({"messages": [{"content": "hi"}]})"),
            "text: field 'messages[0].role' is missing or not a string");
  EXPECT_EQ(error(R"({"messages": [{"from": "human", "value": "hi"}]})"),
            "text: field 'messages[0].role' is missing or not a string; ShareGPTProcessor reads "
            "turns with 'from' and 'value'");
  EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
            R"(text: field 'messages[0].content' has a part {"type":"image"}, )"
            "this template reads text only");
  EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": "x"}], "tools": 1})"),
            "text: field 'tools' is not a list of JSON schemas");
  EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": "x"}], "images": ["a.png"]})"),
            "text: field 'images' is not empty, this template reads text only");
}

TEST(PlainText, RefusesWhatIsNoText) {
  EXPECT_EQ(error_of([] { plain_text(Json(5), 2); }),
            "text: field 'messages[2].content' is neither a string nor a list of parts");
}

TEST(UserDataGet, FindsPairsAndFieldsAndParsesJsonTexts) {
  const auto find_in = [](const std::string& row) {
    return user_data_get(parse_json(row, "row"), "k");
  };
  EXPECT_EQ(find_in(R"({"user_data": [["j", 1], ["k", "[1]"], ["k", 2]]})"), Json(JsonArray{1}));
  EXPECT_EQ(find_in(R"({"user_data": {"k": "plain"}})"), Json("plain"));
  EXPECT_EQ(find_in(R"({"user_data": []})"), std::nullopt);
  EXPECT_EQ(find_in("{}"), std::nullopt);
}

}  // namespace
}  // namespace twinkle::text
