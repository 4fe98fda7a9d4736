#include "twinkle/server/openai/request.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"

namespace twinkle::server::openai {
namespace {

Json parsed(const std::string& text) { return parse_json(text, "the test"); }

// A good body with these members in place of its own.
Json body_of(Form form, const std::string& changes) {
  Json out = form == Form::kChat
                 ? parsed(R"({"model": "m", "messages": [{"role": "user", "content": "?"}]})")
                 : parsed(R"({"model": "m", "prompt": "?"})");
  const Json members = parsed("{" + changes + "}");
  for (const auto& [name, value] : members.as_object()) out.as_object()[name] = value;
  return out;
}
Asked chatting(const std::string& changes) {
  return read(body_of(Form::kChat, changes), Form::kChat, 7);
}
Asked completing(const std::string& changes) {
  return read(body_of(Form::kCompletion, changes), Form::kCompletion, 7);
}

TEST(OpenAiRequest, HasOpenAIsDefaultsAndTakesWhatChangesNothing) {
  const Asked plain = chatting("");
  EXPECT_EQ(plain.params, engine::SamplingParams({.seed = 7, .logprobs = false}));
  EXPECT_EQ(plain.max_tokens, std::nullopt);
  const Asked same = chatting(
      R"("user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "flex", "seed": null,
         "frequency_penalty": 0.0, "presence_penalty": 0, "logit_bias": {}, "stop": null,
         "response_format": {"type": "text"}, "parallel_tool_calls": true, "tools": [])");
  EXPECT_EQ(same.params, plain.params);
  EXPECT_EQ(same.conversation, plain.conversation);
  EXPECT_FALSE(same.has_tools);
  EXPECT_EQ(completing("").max_tokens, 16);
  EXPECT_EQ(completing(R"("best_of": 1, "suffix": "")").params, completing("").params);
}

TEST(OpenAiRequest, ReadsWhatChangesTheResult) {
  const Asked all = chatting(
      R"("n": 2, "seed": -1, "temperature": 0, "top_p": 0.5, "top_k": 0, "min_p": 0.1, "stop": "x",
         "repetition_penalty": 1.5, "logprobs": true, "top_logprobs": 3, "max_tokens": 9,
         "stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true,
         "chat_template_kwargs": {"enable_thinking": false})");
  EXPECT_EQ(all.params, engine::SamplingParams({.seed = UINT64_MAX,
                                                .stop = {"x"},
                                                .temperature = 0,
                                                .top_p = 0.5,
                                                .repetition_penalty = 1.5,
                                                .num_samples = 2,
                                                .ignore_eos = true,
                                                .min_p = 0.1,
                                                .top_logprobs = 3}));
  EXPECT_EQ(all.max_tokens, 9);
  EXPECT_TRUE(all.stream && all.include_usage);
  EXPECT_EQ(all.conversation.at("chat_template_kwargs"), parsed(R"({"enable_thinking": false})"));
  EXPECT_EQ(chatting(R"("max_completion_tokens": 4, "max_tokens": 9)").max_tokens, 4);

  const Asked scored = completing(
      R"("prompt": [[1, 2], "ab"], "echo": true, "max_tokens": 0, "logprobs": 1, "stop": ["a"])");
  EXPECT_EQ(scored.prompts, (std::vector<Prompt>{std::vector<int32_t>{1, 2}, "ab"}));
  EXPECT_EQ(scored.max_tokens, 0);
  EXPECT_TRUE(scored.params.prompt_logprobs && scored.params.logprobs);
  EXPECT_EQ(scored.params.top_prompt_logprobs, 1);
  EXPECT_EQ(completing(R"("prompt": [3, 4])").prompts,
            (std::vector<Prompt>{std::vector<int32_t>{3, 4}}));
}

TEST(OpenAiRequest, MessagesAreThoseThatATemplateKnows) {
  const Asked asked = chatting(
      R"("messages": [{"role": "developer", "content": "d"},
                      {"role": "user", "content": [{"type": "text", "text": "a"}], "name": "n"},
                      {"role": "assistant", "content": null, "refusal": null, "annotations": [],
                       "tool_calls": [{"id": "c", "type": "function",
                                       "function": {"name": "f", "arguments": "{}"}}]},
                      {"role": "tool", "content": "4", "tool_call_id": "c"}],
         "tools": [{"type": "function", "function": {"name": "f"}}])");
  const JsonArray& messages = asked.conversation.at("messages").as_array();
  EXPECT_EQ(messages[0], parsed(R"({"role": "system", "content": "d"})"));
  EXPECT_FALSE(messages[2].as_object().contains("annotations"));
  EXPECT_TRUE(asked.has_tools);
  const Asked none = chatting(
      R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none")");
  EXPECT_FALSE(none.has_tools || none.conversation.contains("tools"));
}

TEST(OpenAiRequest, RefusesAChatByTheFieldItsValueAndARemedy) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("temprature": 1)",
       "openai: temprature is no option of /v1/chat/completions; did you mean temperature?"},
      {R"("prompt": "a")", "openai: prompt is no option of /v1/chat/completions; leave it out"},
      {R"("response_format": {"type": "json_object"})",
       R"(openai: response_format is {"type":"json_object"}, which this server does not do; leave it)"
       " out"},
      {R"("functions": [{"name": "f"}])",
       R"(openai: functions is [{"name":"f"}], which this server does not do; leave it out)"},
      {R"("presence_penalty": 0.5)",
       "openai: presence_penalty is 5E-1, which this server does not do; leave it out"},
      {R"("parallel_tool_calls": false)",
       "openai: parallel_tool_calls is false, which this server does not do; leave it out"},
      {R"("n": 0)", "openai: n is 0, it must be from 1 to 128"},
      {R"("n": "2")", R"(json: field 'n' is "2", expected an integer)"},
      {R"("model": null)", "json: field 'model' is null, expected a string"},
      {R"("max_tokens": 0)", "openai: max_tokens is 0, it must be from 1 to 2147483647"},
      {R"("top_logprobs": 2)", "openai: top_logprobs needs logprobs: true; give it, too"},
      {R"("logprobs": true, "top_logprobs": 21)",
       "openai: top_logprobs is 21, it must be from 0 to 20"},
      {R"("stop": ["a", 7])", "openai: stop holds 7, it must be a text of 1 to 1024 bytes"},
      {R"("stop": "")", "openai: stop holds \"\", it must be a text of 1 to 1024 bytes"},
      {R"("stream_options": {"include_usage": true})",
       R"(openai: stream_options is {"include_usage":true}, it must be an object, with stream: true)"},
      {R"("stream": true, "stream_options": {"more": 1})",
       "openai: stream_options.more is not known; leave it out"},
      {R"("messages": [])",
       "openai: messages is [], it must be a list of messages with role and "
       "content"},
      {R"("messages": [3])",
       "openai: messages[0] is 3, it must be an object with role and content"},
      {R"("messages": [{"role": "function", "content": "a"}])",
       "openai: messages[0].role is 'function', it must be system, developer, user, assistant or "
       "tool"},
      {R"("messages": [{"role": "user"}])", "openai: messages[0].content is missing"},
      {R"("messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
       "openai: messages[0].content has a part of type 'image_url', this server's models read text "
       "alone"},
      {R"("messages": [{"role": "user", "content": "a", "audio": {}}])",
       "openai: messages[0].audio is not read by this server; leave it out"},
      {R"("messages": [{"role": "user", "content": "a", "tool_calls": [{}]}])",
       "openai: messages[0].tool_calls is not for a message of role 'user'; leave it out"},
      {R"("messages": [{"role": "assistant", "tool_calls": [{}]}])",
       "openai: messages[0].tool_calls holds {}, each must have a function with a name and "
       "arguments, the JSON text of an object"},
      {R"("tools": [{"type": "custom"}])",
       R"(openai: tools holds {"type":"custom"}, each must be of type function and have a function )"
       "with a name"},
      {R"("tool_choice": "required")",
       R"(openai: tool_choice is "required", this server takes "auto" and "none")"},
      {R"("chat_template_kwargs": 1)",
       "openai: chat_template_kwargs is 1, it must be an object of names that the chat template "
       "reads"},
  };
  for (const auto& [changes, why] : cases)
    EXPECT_EQ(invalid_of([&] { chatting(changes); }), why) << changes;
}

TEST(OpenAiRequest, RefusesACompletionLikewise) {
  const std::pair<const char*, const char*> cases[] = {
      {R"("messages": [])", "openai: messages is no option of /v1/completions; leave it out"},
      {R"("best_of": 2)", "openai: best_of is 2, which this server does not do; leave it out"},
      {R"("suffix": "a")", R"(openai: suffix is "a", which this server does not do; leave it out)"},
      {R"("prompt": null)", "openai: prompt is missing; give a text"},
      {R"("prompt": [])",
       "openai: prompt is [], it must be a text, a list of tokens, or a list of these"},
      {R"("prompt": [1, -2])",
       "openai: prompt holds -2, it must be a text, a list of tokens, or a list of these"},
      {R"("prompt": [["a"]])",
       R"(openai: prompt holds "a", it must be a text, a list of tokens, or a list of these)"},
      {R"("prompt": ["a", "b", "c", "d", "e", "f", "g", "h", "i"], "n": 128)",
       "openai: prompt and n ask for 1152 choices, a request may have 1024; send several"},
      {R"("logprobs": 21)", "openai: logprobs is 21, it must be from 0 to 20"},
      {R"("max_tokens": 0)", "openai: max_tokens is 0, it must be from 1 to 2147483647"},
      {R"("echo": true, "stream": true)",
       "openai: echo is true, which a stream does not do; leave one of them out"},
  };
  for (const auto& [changes, why] : cases)
    EXPECT_EQ(invalid_of([&] { completing(changes); }), why) << changes;
  EXPECT_EQ(invalid_of([] { read(Json(3), Form::kChat, 0); }),
            "openai: the body must be an object of JSON");
}

}  // namespace
}  // namespace twinkle::server::openai
