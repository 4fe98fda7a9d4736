// Answers and streams of texts that can be worked out by hand: the tiny tokenizer's token of a byte
// is the byte.
#include "twinkle/server/openai/answer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/base/error_for_test.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::server::openai {
namespace {

constexpr int32_t kEnd = 259;  // </s>

// As Qwen's templates write tools and calls, but for what they say around them.
constexpr const char* kToolChat =
    "{% if tools %}<s>tools{% for t in tools %}{{ t.function.name }},{% endfor %}</s>{% endif %}"
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n"
    "{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}"
    "\n</tool_call>{% endfor %}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}";

std::vector<int32_t> bytes(const std::string& text) {
  std::vector<int32_t> out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

engine::Completion completion(const std::string& text, const std::string& reason = "length") {
  engine::Completion out{.tokens = bytes(text), .stop_reason = reason};
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    out.logprobs.push_back(-1.0f - static_cast<float>(i));
    out.top_logprobs.push_back({{'x', -0.5f}, {out.tokens[i], out.logprobs[i]}});
  }
  return out;
}

// The events of it that a listener gets, so many tokens at a time.
std::vector<std::vector<engine::TokenEvent>> events(const engine::Completion& c, size_t each,
                                                    size_t prompt = 0, size_t sample = 0) {
  std::vector<std::vector<engine::TokenEvent>> out;
  for (size_t i = 0; i < c.tokens.size(); ++i) {
    if (i % each == 0) out.emplace_back();
    out.back().push_back({prompt, sample, c.tokens[i], c.logprobs[i],
                          i + 1 == c.tokens.size() ? c.stop_reason : "", c.top_logprobs[i]});
  }
  return out;
}

class OpenAiAnswer : public testing::Test {
 protected:
  static Asked chat(const std::string& more = "") {
    const std::string body =
        R"({"model": "m", "messages": [{"role": "user", "content": "?"}])" + more + "}";
    return read(parse_json(body, "the test"), Form::kChat, 1);
  }
  static Asked completing(const std::string& more = "") {
    return read(parse_json(R"({"model": "m", "prompt": "ab")" + more + "}", "the test"),
                Form::kCompletion, 1);
  }
  Json whole(const Asked& asked, const engine::SampleResult& result,
             const Answer::Prompts& prompts = {{97, 98}}) const {
    return parse_json(Answer(asked, texts_, "1f", 5, prompts).whole(result, prompts), "answer");
  }
  // Each "data: " of a stream of these events, the first that has no text left out.
  static std::vector<Json> chunks(const std::string& stream) {
    std::vector<Json> out;
    for (size_t at = 0, end = 0; at < stream.size(); at = end + 2) {
      end = stream.find("\n\n", at);
      EXPECT_EQ(stream.substr(at, 6), "data: ");
      const std::string data = stream.substr(at + 6, end - at - 6);
      out.push_back(data == "[DONE]" ? Json(data) : parse_json(data, "chunk"));
    }
    return out;
  }
  std::vector<Json> streamed(const Asked& asked, const engine::Completion& c, size_t each) const {
    Answer answer(asked, texts_, "1f", 5, {{97, 98}});
    std::string out = answer.first();
    for (const auto& some : events(c, each)) out += answer.chunks(some);
    return chunks(out + answer.last());
  }
  static std::string text_of(const std::vector<Json>& chunks) {
    std::string out;
    for (const Json& chunk : chunks) {
      if (chunk.is_string() || chunk.at("choices").as_array().empty()) continue;
      const Json& choice = chunk.at("choices").at(0);
      const Json* delta = find(choice, "delta");
      out += get_or<std::string>(delta ? *delta : choice, delta ? "content" : "text", "");
    }
    return out;
  }

  text::TinyModel model_{kToolChat};
  std::shared_ptr<const Texts> texts_ = Texts::of_model(model_.directory());
};

TEST_F(OpenAiAnswer, AWholeChatHasItsTextItsEndAndWhatItTook) {
  engine::Completion first = completion("hi", "stop"), second = completion("yo");
  first.tokens.push_back(kEnd), first.logprobs.push_back(-9);
  const Json told = whole(chat(R"(, "n": 2)"), {{{first, second}}, {{}}});
  const Json want = parse_json(R"({
    "id": "chatcmpl-1f", "object": "chat.completion", "created": 5, "model": "m",
    "choices": [
      {"index": 0, "logprobs": null, "finish_reason": "stop",
       "message": {"role": "assistant", "refusal": null, "content": "hi"}},
      {"index": 1, "logprobs": null, "finish_reason": "length",
       "message": {"role": "assistant", "refusal": null, "content": "yo"}}],
    "usage": {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}})",
                               "wanted");
  EXPECT_EQ(told, want) << told;
}

TEST_F(OpenAiAnswer, AStreamHasTheTextOfTheWholeOneHoweverItsTokensCome) {
  const std::string text = "caf\xC3\xA9 \xF0\x9F\x99\x82 a</a";
  for (const char* more : {"", R"(, "tools": [{"type": "function", "function": {"name": "f"}}])"})
    for (const size_t each : {1U, 2U, 5U, 100U}) {
      const auto told =
          streamed(chat(std::string(R"(, "stream": true)") + more), completion(text), each);
      EXPECT_EQ(text_of(told), text) << each;
      EXPECT_EQ(told[0].at("choices").at(0).at("delta").at("role"), "assistant");
      EXPECT_EQ(told[told.size() - 2].at("choices").at(0).at("finish_reason"), "length");
      EXPECT_EQ(told.back(), Json("[DONE]"));
    }
}

TEST_F(OpenAiAnswer, UsageComesLastWhereAStreamAsksForItAndIsNullBefore) {
  const auto told =
      streamed(completing(R"(, "stream": true, "stream_options": {"include_usage": true})"),
               completion("abc"), 2);
  ASSERT_EQ(told.size(), 4U);
  EXPECT_TRUE(told[0].at("usage").is_null());
  EXPECT_EQ(told[0].at("object"), "text_completion");
  EXPECT_EQ(told[2].at("choices"), JsonArray());
  EXPECT_EQ(told[2].at("usage"),
            parse_json(R"({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5})", ""));
}

TEST_F(OpenAiAnswer, TheTextEndsBeforeTheStopThatEndedIt) {
  const engine::Completion c = completion("one two", "stop");  // as the sampler gives "two" whole
  EXPECT_EQ(whole(chat(R"(, "stop": ["zzz", "two"])"), {{{c}}, {{}}})
                .at("choices")
                .at(0)
                .at("message")
                .at("content"),
            "one ");
  EXPECT_EQ(text_of(streamed(chat(R"(, "stop": "two", "stream": true)"), c, 4)), "one ");
  EXPECT_EQ(text_of(streamed(chat(R"(, "stop": "two", "stream": true)"), completion("a two b"), 4)),
            "a two b")
      << "it did not end by that";
}

constexpr const char* kCall =
    "Well.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1.50}}\n</tool_call>";

TEST_F(OpenAiAnswer, CallsOfToolsAreTakenOutOfTheText) {
  const Asked asked = chat(R"(, "tools": [{"type": "function", "function": {"name": "f"}}])");
  const Json choice = whole(asked, {{{completion(kCall, "stop")}}, {{}}}).at("choices").at(0);
  EXPECT_EQ(choice.at("finish_reason"), "tool_calls");
  EXPECT_EQ(choice.at("message").at("content"), "Well.");
  EXPECT_EQ(choice.at("message").at("tool_calls"),
            parse_json(R"([{"id": "call_1f-0-0", "type": "function",
                            "function": {"name": "f", "arguments": "{\"x\": 1.50}"}}])",
                       ""));
  const Json plain = whole(chat(), {{{completion(kCall, "stop")}}, {{}}}).at("choices").at(0);
  EXPECT_EQ(plain.at("message").at("content"), kCall) << "nobody gave it tools";
}

TEST_F(OpenAiAnswer, AStreamTellsNoPartOfACallAsText) {
  const Asked asked =
      chat(R"(, "stream": true, "tools": [{"type": "function", "function": {"name": "f"}}])");
  for (const size_t each : {1U, 3U, 100U}) {
    const auto told = streamed(asked, completion(kCall, "stop"), each);
    EXPECT_EQ(text_of(told).substr(0, 5), "Well.");
    EXPECT_EQ(text_of(told).find('<'), std::string::npos);
    const Json& last = told[told.size() - 2].at("choices").at(0);
    EXPECT_EQ(last.at("finish_reason"), "tool_calls");
    EXPECT_EQ(last.at("delta").at("tool_calls").at(0).at("index"), 0);
    EXPECT_EQ(last.at("delta").at("tool_calls").at(0).at("function").at("name"), "f");
  }
}

TEST_F(OpenAiAnswer, LogprobsOfAChatAreOfEveryTokenAlsoInAStream) {
  const std::string more = R"(, "logprobs": true, "top_logprobs": 2)";
  const Json all = whole(chat(more), {{{completion("a\xC3\xA9")}}, {{}}})
                       .at("choices")
                       .at(0)
                       .at("logprobs")
                       .at("content");
  EXPECT_EQ(all.at(0), parse_json(R"({"token": "a", "logprob": -1.0, "bytes": [97],
      "top_logprobs": [{"token": "x", "logprob": -0.5, "bytes": [120]},
                       {"token": "a", "logprob": -1.0, "bytes": [97]}]})",
                                  ""));
  EXPECT_TRUE(all.at(1).at("bytes").is_null()) << "half of a character";
  JsonArray told;
  for (const Json& chunk : streamed(chat(more + R"(, "stream": true)"), completion("a\xC3\xA9"), 1))
    if (const Json* logprobs =
            chunk.is_object() ? find(chunk.at("choices").at(0), "logprobs") : nullptr)
      for (const Json& one : logprobs->at("content").as_array()) told.push_back(one);
  EXPECT_EQ(Json(told), all);
}

TEST_F(OpenAiAnswer, AnEchoHasThePromptAndItsLogprobs) {
  const sampler::PromptScores scores{{-3.0f}, {{{'z', -0.25f}}}};
  engine::Completion c = completion("c");
  c.logprobs[0] = -INFINITY, c.top_logprobs[0] = {{'c', -INFINITY}};
  const Json choice =
      whole(completing(R"(, "echo": true, "logprobs": 1, "max_tokens": 1)"), {{{c}}, {scores}})
          .at("choices")
          .at(0);
  EXPECT_EQ(choice.at("text"), "abc");
  EXPECT_EQ(choice.at("logprobs"), parse_json(R"({
      "tokens": ["a", "b", "c"], "token_logprobs": [null, -3.0, -9999.0],
      "top_logprobs": [null, {"z": -0.25, "b": -3.0}, {"c": -9999.0}],
      "text_offset": [0, 1, 2]})",
                                              ""));
}

TEST_F(OpenAiAnswer, PromptsAreWhatTheTemplateAndTheTokenizerSay) {
  EXPECT_EQ(texts_->text(texts_->prompts_of(chat())[0], true), "<s>user\n?</s><s>assistant\n");
  EXPECT_EQ(texts_->prompts_of(completing(R"(, "prompt": ["ab", [1, 2]])")),
            (Answer::Prompts{{97, 98}, {1, 2}}));
  EXPECT_EQ(invalid_of([&] { texts_->prompts_of(completing(R"(, "prompt": "")")); }),
            "openai: prompt has no tokens, it must have at least 1");
  const std::string tools = R"(, "tools": [{"type": "function", "function": {"name": "f"}}])";
  EXPECT_EQ(texts_->text(texts_->prompts_of(chat(tools))[0], true).substr(0, 8), "<s>tools");
  const text::TinyModel no_tools, no_chat("");
  expect_error("writes no calls that this server reads; leave them out",
               [&] { Texts::of_model(no_tools.directory())->prompts_of(chat(tools)); });
  expect_error("openai: messages need a chat template, which this model has not",
               [&] { Texts::of_model(no_chat.directory())->prompts_of(chat()); });
  no_chat.write("tokenizer.json", "{");
  expect_error("openai: the model's tokenizer cannot be read",
               [&] { Texts::of_model(no_chat.directory()); });
}

}  // namespace
}  // namespace twinkle::server::openai
