#include "twinkle/text/tools/format.h"

#include <gtest/gtest.h>

#include <utility>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/json.h"

namespace twinkle::text {
namespace {

// "name {arguments}" of each call.
std::string told_calls(std::string_view format, std::string_view text) {
  std::string out;
  for (const ToolCall& call : tool_format(format).calls(text))
    out.append(out.empty() ? "" : "; ").append(call.name).append(" ").append(call.arguments);
  return out;
}

std::string left(std::string_view format, std::string_view text) {
  return tool_format(format).cleaned(text);
}

std::string result(std::string_view format, std::string_view text) {
  return std::string(tool_format(format).result_in(text).value_or("none"));
}

TEST(ToolFormats, AreAskedInTheOrderOfTheirListAndKnownByName) {
  std::string names;
  for (const ToolFormat& format : tool_formats()) names.append(format.name).append(" ");
  EXPECT_EQ(names, "hermes_qwen cline vcp react ");
  EXPECT_EQ(
      error_of([] { tool_format("xml"); }),
      "text: there is no format of tool calls 'xml'; there are hermes_qwen, cline, vcp, react");
}

TEST(ToolFormats, HermesArgumentsStayAsTheModelWroteThem) {
  const char* name = "hermes_qwen";
  EXPECT_EQ(told_calls(name,
                       "Well. <tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1.50, "
                       "\"big\": 123456789012345678901234567890, \"x\": NaN}}\n</tool_call>"),
            "f {\"n\": 1.50, \"big\": 123456789012345678901234567890, \"x\": NaN}");
  EXPECT_EQ(told_calls(name, R"(<tool_call>{"name": "f", "arguments": "{\"a\": \"\\u00fc\"}"})"),
            R"(f {"a": "\u00fc"})")
      << "the end of the last block may be missing, and the arguments a text";
  EXPECT_EQ(told_calls(name, R"(<tool_call>{"arguments": {"a": 1}, "name": "g", "name": "f",
                                 "arguments": null}</tool_call>)"),
            "f {}")
      << "the later of two counts";
  EXPECT_EQ(told_calls(name, R"(<tool_call>{"n\u0061me": "a\"b"}</tool_call>)"), "a\"b {}");
}

TEST(ToolFormats, HermesParametersAreJsonOrText) {
  EXPECT_EQ(told_calls("hermes_qwen",
                       "<tool_call><function= look >\n<parameter=at>\nthe \"sky\"\n</parameter>"
                       "<parameter= n >\n[1, 2]\n</parameter><parameter=at>\u3000x\n</parameter>"
                       "<parameter=open>1</function>\n</tool_call>"),
            R"(look {"at": "x", "n": [1, 2]})");
}

TEST(ToolFormats, BrokenHermesBlocksAreNoCallsButTaken) {
  for (const char* block :
       {"{\"name\": 3}", "{\"name\": \"\"}", "[1]", "{\"name\": \"f\",}", "", "{\"name\": \"f\"} x",
        "{\"name\": \"f\", \"arguments\": {\"a\": 01}}"}) {
    const std::string text = "a <tool_call>" + std::string(block) + "</tool_call>\u2003\n";
    EXPECT_EQ(told_calls("hermes_qwen", text), "") << block;
    EXPECT_EQ(left("hermes_qwen", text), "a") << block;
    EXPECT_TRUE(tool_format("hermes_qwen").is_in(text)) << block;
  }
  EXPECT_FALSE(tool_format("hermes_qwen").is_in("</tool_call>"));
}

TEST(ToolFormats, ClineCallsAreElementsWithInnerOnes) {
  EXPECT_EQ(told_calls("cline",
                       "I <read_file><path> a.py </path><path>b</path></read_file> and "
                       "<go><to>b</to><now></now></go>."),
            R"(read_file {"path": "b"}; go {"to": "b", "now": ""})");
  EXPECT_EQ(left("cline", "I <go><to>b</to></go> do.\n"), "I  do.");
  for (const char* text : {"<ul><li>a</li></ul>", "<f>a</f>", "<F><a>b</a></F>", "<f><a>b</a>",
                           "2 < 3 > 1", "<think><x>1</x></think>"})
    EXPECT_FALSE(tool_format("cline").is_in(text)) << text;
}

TEST(ToolFormats, VcpFieldsMayHaveAnyWordAsTheirKey) {
  EXPECT_EQ(told_calls("vcp",
                       "Ok <<<[TOOL_REQUEST]>>>\ntool_name:「始」 draw 「末」，prompt :\n"
                       "「始」a\ncat「末」,\nраз_2:「始ESCAPE」「始」b「末」「末ESCAPE」x "
                       "y:「始」c<<<[END_TOOL_REQUEST]>>>"),
            R"(draw {"prompt": "a\ncat", "раз_2": "「始」b「末」"})");
  const char* no_name = "<<<[TOOL_REQUEST]>>>a:「始」x「末」<<<[END_TOOL_REQUEST]>>> b";
  EXPECT_EQ(told_calls("vcp", no_name), "");
  EXPECT_EQ(left("vcp", no_name), " b");
  EXPECT_TRUE(tool_format("vcp").is_in("<<<[TOOL_REQUEST]>>> without an end"));
}

TEST(ToolFormats, ReactActionsAreLines) {
  EXPECT_EQ(told_calls("react",
                       "Thought: x\n Action : search[who [is] it] \t\nAction: math.add\n"
                       "Action Input: {\"a\": 1.0}\nAction: 说/a-b\n\tAction Input :  hi \n"
                       "Action: a[b] c\nAction: d\nAction: e[]"),
            R"(search {"input": "who [is] it"}; math.add {"a": 1.0}; 说/a-b {"input": "hi"}; )"
            R"(e {"input": ""})");
  EXPECT_EQ(left("react", "Thought: x\nAction: a[b]\nmore\n"), "Thought: x\nmore");
  for (const char* text : {"Action: none", "see Action: a[b]", "Action: a[b]\r\n", "Action: [b]"})
    EXPECT_FALSE(tool_format("react").is_in(text)) << text;
}

TEST(ToolFormats, ResultsAreTakenOutOfTheirFrame) {
  EXPECT_EQ(result("hermes_qwen", " <tool_response>\n21 °C\n</tool_response>\n"), "21 °C");
  EXPECT_EQ(result("hermes_qwen", "<tool_response>a</tool_response> b"), "a</tool_response> b");
  EXPECT_EQ(result("hermes_qwen", "a <tool_response>b"), "none");
  EXPECT_EQ(result("cline", "[read_file for 'a.py'] Result:\n x\n"), "x\n");
  EXPECT_EQ(result("cline", "[read_file for 'a'b'] Result: x"), "none");
  EXPECT_EQ(result("react", "\nObservation :\t21\n"), "21\n");
  EXPECT_EQ(result("react", "Observations: 21"), "none");
  EXPECT_EQ(result("vcp", "Observation: 21"), "none");
}

}  // namespace
}  // namespace twinkle::text
