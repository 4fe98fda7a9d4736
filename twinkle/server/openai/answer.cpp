#include "twinkle/server/openai/answer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>

namespace twinkle::server::openai {
namespace {

constexpr double kLeastLogprob = -9999;  // OpenAI's own, since JSON has no -inf

Json number(float logprob) {
  if (std::isnan(logprob)) return nullptr;
  return std::max(static_cast<double>(logprob), kLeastLogprob);
}

// Null of a token that is a part of a character.
Json utf8_of(const std::string& text) {
  if (text.find("\xEF\xBF\xBD") != std::string::npos) return nullptr;
  JsonArray out;
  for (const char c : text) out.push_back(static_cast<unsigned char>(c));
  return out;
}

size_t num_characters(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

Json or_null(std::string text) { return text.empty() ? Json() : Json(std::move(text)); }

}  // namespace

Answer::Answer(const Asked& asked, std::shared_ptr<const Texts> texts, const std::string& id,
               int64_t created, const Prompts& prompts)
    : asked_(asked), texts_(std::move(texts)), id_(id), created_(created) {
  for (const auto& prompt : prompts) num_prompt_ += std::ssize(prompt);
  const size_t num = prompts.size() * static_cast<size_t>(asked_.params.num_samples);
  for (size_t i = 0; asked_.stream && i < num; ++i) choices_.emplace(i, Choice{texts_->pieces()});
}

JsonObject Answer::head(const char* chunk) const {
  const bool is_chat = asked_.form == Form::kChat;
  return {{"id", (is_chat ? "chatcmpl-" : "cmpl-") + id_},
          {"object", is_chat ? std::string("chat.completion") + chunk : "text_completion"},
          {"created", created_},
          {"model", asked_.model}};
}

Json Answer::usage(int64_t num_generated) const {
  return {{"prompt_tokens", num_prompt_},
          {"completion_tokens", num_generated},
          {"total_tokens", num_prompt_ + num_generated}};
}

// Up to the text that ended it, if one did. A stream has told nothing that it could begin in.
std::string Answer::cut(std::string text, const std::string& reason) const {
  size_t end = text.size();
  if (reason == "stop")
    for (const std::string& stop : asked_.params.stop) end = std::min(end, text.find(stop));
  text.resize(end);
  return text;
}

Json Answer::calls_of(size_t index, const std::vector<text::ToolCall>& calls, bool numbered) const {
  JsonArray out;
  for (const text::ToolCall& call : calls) {
    const std::string place = std::to_string(index) + "-" + std::to_string(out.size());
    JsonObject one{{"id", "call_" + id_ + "-" + place},
                   {"type", "function"},
                   {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
    if (numbered) one["index"] = out.size();
    out.push_back(std::move(one));
  }
  return out;
}

Json Answer::logprobs_of(std::span<const Scored> scored, size_t& offset) const {
  if (!asked_.params.logprobs) return nullptr;
  const bool is_chat = asked_.form == Form::kChat, has_top = asked_.params.top_logprobs > 0;
  const auto entry = [&](int32_t token, float logprob) {
    const std::string text = texts_->token(token);
    return JsonObject{{"token", text}, {"logprob", number(logprob)}, {"bytes", utf8_of(text)}};
  };
  JsonArray content, tokens, logprobs, top, offsets;
  for (const Scored& s : scored) {
    if (is_chat) {
      JsonArray likeliest;
      for (const auto& other : s.top) likeliest.push_back(entry(other.id, other.logprob));
      content.push_back(entry(s.token, s.logprob));
      content.back().get_object()["top_logprobs"] = std::move(likeliest);
      continue;
    }
    const std::string text = texts_->token(s.token);
    JsonObject likeliest;  // tokens of one text: the likeliest of them
    for (const auto& other : s.top)
      likeliest.emplace(texts_->token(other.id), number(other.logprob));
    likeliest.emplace(text, number(s.logprob));
    top.push_back(has_top && !std::isnan(s.logprob) ? Json(std::move(likeliest)) : Json());
    tokens.push_back(Json(text));
    logprobs.push_back(number(s.logprob));
    offsets.push_back(offset);
    offset += num_characters(text);
  }
  if (is_chat) return {{"content", std::move(content)}, {"refusal", nullptr}};
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", has_top ? Json(std::move(top)) : Json()},
          {"text_offset", std::move(offsets)}};
}

Json Answer::choice_of(size_t index, const engine::Completion& c,
                       const std::vector<int32_t>& prompt,
                       const sampler::PromptScores& scores) const {
  std::vector<Scored> scored;
  for (size_t i = 0; asked_.echo && asked_.params.logprobs && i < prompt.size(); ++i) {
    scored.push_back({prompt[i], i > 0 ? scores.logprobs.at(i - 1) : std::nanf("")});
    if (i > 0 && !scores.top_logprobs.empty()) scored.back().top = scores.top_logprobs.at(i - 1);
  }
  for (size_t i = 0; asked_.params.logprobs && i < c.tokens.size(); ++i)
    scored.push_back({c.tokens[i], c.logprobs.at(i),
                      c.top_logprobs.empty() ? sampler::TopLogprobs() : c.top_logprobs[i]});
  std::string text = cut(texts_->text(c.tokens, false), c.stop_reason);
  std::string reason = c.stop_reason;
  JsonObject out{{"index", index}};
  size_t offset = 0;
  out["logprobs"] = logprobs_of(scored, offset);
  if (asked_.form == Form::kChat) {
    Texts::Reply reply{std::move(text)};
    if (asked_.has_tools) reply = texts_->reply_of(std::move(reply.content));
    JsonObject message{{"role", "assistant"}, {"refusal", nullptr}};
    if (!reply.calls.empty()) {
      reason = "tool_calls";
      message["tool_calls"] = calls_of(index, reply.calls, false);
      message["content"] = or_null(std::move(reply.content));
    } else {
      message["content"] = std::move(reply.content);
    }
    out["message"] = std::move(message);
  } else {
    out["text"] = asked_.echo ? texts_->text(prompt, true) + text : text;
  }
  out["finish_reason"] = reason;
  return out;
}

std::string Answer::whole(const engine::SampleResult& result, const Prompts& prompts) const {
  JsonArray choices;
  int64_t num_generated = 0;
  for (size_t p = 0; p < prompts.size(); ++p)
    for (const engine::Completion& c : result.completions.at(p)) {
      choices.push_back(choice_of(choices.size(), c, prompts[p], result.prompts.at(p)));
      num_generated += std::ssize(c.tokens);
    }
  JsonObject out = head("");
  out["choices"] = std::move(choices);
  out["usage"] = usage(num_generated);
  return boost::json::serialize(out);
}

std::string Answer::event(Json choice) const {
  JsonObject out = head(".chunk");
  out["choices"] = JsonArray{std::move(choice)};
  if (asked_.include_usage) out["usage"] = nullptr;
  return "data: " + boost::json::serialize(out) + "\n\n";
}

std::string Answer::first() const {
  std::string out;
  if (asked_.form == Form::kChat)
    for (const auto& [index, choice] : choices_)
      out += event({{"index", index},
                    {"delta", {{"role", "assistant"}, {"content", ""}}},
                    {"logprobs", nullptr},
                    {"finish_reason", nullptr}});
  return out;
}

// The text that has come and may be told; null: there is nothing to tell now.
Json Answer::chunk_of(size_t index, Choice& choice) const {
  const bool ends = !choice.reason.empty();
  Texts::Reply reply;  // without what was given before
  if (ends) {
    choice.pieces.rest();
    reply.content = cut(choice.pieces.text(), choice.reason);
    if (asked_.has_tools) reply = texts_->reply_of(std::move(reply.content));
    reply.content.erase(0, choice.told);
  } else {
    reply.content = choice.pieces.text().substr(choice.told);
    if (asked_.has_tools) reply.content.resize(texts_->settled(reply.content));
  }
  if (reply.content.empty() && choice.scored.empty() && !ends) return nullptr;
  choice.told += reply.content.size();
  JsonObject out{{"index", index}, {"finish_reason", or_null(choice.reason)}};
  if (!reply.calls.empty()) out["finish_reason"] = "tool_calls";
  out["logprobs"] = logprobs_of(choice.scored, choice.offset);
  choice.scored.clear();
  if (asked_.form == Form::kCompletion) {
    out["text"] = std::move(reply.content);
    return out;
  }
  JsonObject delta;
  if (!reply.content.empty() || !ends) delta["content"] = std::move(reply.content);
  if (!reply.calls.empty()) delta["tool_calls"] = calls_of(index, reply.calls, true);
  out["delta"] = std::move(delta);
  return out;
}

std::string Answer::chunks(std::span<const engine::TokenEvent> events) {
  std::set<size_t> touched;
  for (const engine::TokenEvent& e : events) {
    const size_t index = e.prompt * static_cast<size_t>(asked_.params.num_samples) + e.sample;
    Choice& choice = choices_.at(index);
    choice.pieces.add(e.token);
    choice.reason = e.stop_reason;
    if (asked_.params.logprobs) choice.scored.push_back({e.token, e.logprob, e.top_logprobs});
    touched.insert(index);
  }
  num_generated_ += std::ssize(events);
  std::string out;
  for (const size_t index : touched)
    if (Json choice = chunk_of(index, choices_.at(index)); !choice.is_null())
      out += event(std::move(choice));
  return out;
}

std::string Answer::last() const {
  std::string out;
  if (asked_.include_usage) {
    JsonObject with = head(".chunk");
    with["choices"] = JsonArray{};
    with["usage"] = usage(num_generated_);
    out = "data: " + boost::json::serialize(with) + "\n\n";
  }
  return out + "data: [DONE]\n\n";
}

}  // namespace twinkle::server::openai
