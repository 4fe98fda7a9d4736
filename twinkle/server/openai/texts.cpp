#include "twinkle/server/openai/texts.h"

#include <algorithm>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/text/rust/shared_tokenizer.h"

namespace twinkle::server::openai {
namespace {

constexpr const char* kProbe = "probe_of_calls";

std::vector<int32_t> narrow(const std::vector<int64_t>& ids) { return {ids.begin(), ids.end()}; }

// As the template writes it, a chat that ends with a call; "": it fails on that.
std::string chat_with_call(const text::Template& chat) {
  const JsonObject function{{"name", kProbe}, {"arguments", R"({"a": 1})"}};
  const JsonObject call{{"id", "call_0"}, {"type", "function"}, {"function", function}};
  const JsonObject schema{{"type", "object"}, {"properties", JsonObject()}};
  const JsonObject declared{{"name", kProbe}, {"description", ""}, {"parameters", schema}};
  const JsonObject question{{"role", "user"}, {"content", "?"}},
      reply{{"role", "assistant"}, {"content", ""}, {"tool_calls", JsonArray{call}}};
  const JsonObject tool{{"type", "function"}, {"function", declared}};
  try {
    return chat.render(
        JsonObject{{"messages", JsonArray{question, reply}}, {"tools", JsonArray{tool}}});
  } catch (const Error&) {  // it knows no calls
    return "";
  }
}

}  // namespace

std::shared_ptr<const Texts> Texts::of_model(const std::filesystem::path& model) {
  const std::shared_ptr<Texts> out(new Texts);
  try {
    out->tokenizer_ = text::shared_tokenizer(model);
  } catch (const Error&) {  // its text has a path of the operator's
    fail(Code::kInternal, "openai: the model's tokenizer cannot be read");
  }
  try {
    out->chat_.emplace(model, text::TemplateOptions{.max_length = 0});
  } catch (const Error& error) {
    if (error.code == Code::kNotFound) return out;
    fail(Code::kInternal, "openai: the model's chat template cannot be read");
  }
  if (!out->chat_->writes_calls()) return out;
  const std::string probe = chat_with_call(*out->chat_);
  for (const text::ToolFormat& format : text::tool_formats())
    for (const text::ToolPart& part : format.parts(probe)) {
      if (out->calls_ || !part.call || part.call->name != kProbe) continue;
      out->calls_ = &format;
      out->mark_ = probe.substr(part.begin, probe.find_first_of(" \n{", part.begin) - part.begin);
    }
  return out;
}

std::vector<std::vector<int32_t>> Texts::prompts_of(const Asked& asked) const {
  std::vector<std::vector<int32_t>> out;
  if (asked.form == Form::kChat) {
    require(chat_.has_value(), Code::kInvalid,
            "openai: messages need a chat template, which this model has not; use "
            "/v1/completions");
    require(!asked.has_tools || calls_, Code::kInvalid,
            "openai: tools are given, but this model's chat template writes no calls that this "
            "server reads; leave them out");
    out.push_back(narrow(chat_->encode(asked.conversation, true).at(0).input_ids));
  }
  for (const Prompt& prompt : asked.prompts)
    if (const auto* text = std::get_if<std::string>(&prompt))
      out.push_back(narrow(tokenizer_->encode(*text, true)));
    else
      out.push_back(std::get<std::vector<int32_t>>(prompt));
  for (const auto& prompt : out)
    require(!prompt.empty(), Code::kInvalid,
            "openai: prompt has no tokens, it must have at least 1");
  return out;
}

std::string Texts::token(int32_t id) const { return text({&id, 1}, true); }

std::string Texts::text(std::span<const int32_t> ids, bool special) const {
  return tokenizer_->decode(std::vector<int64_t>(ids.begin(), ids.end()), !special);
}

text::TextPieces Texts::pieces() const {
  return text::TextPieces([tokenizer = tokenizer_](std::span<const int64_t> ids) {
    return tokenizer->decode(ids, true);
  });
}

Texts::Reply Texts::reply_of(std::string text) const {
  std::vector<text::ToolCall> calls = calls_->calls(text);
  if (calls.empty()) return {std::move(text)};
  return {calls_->cleaned(text), std::move(calls)};
}

size_t Texts::settled(std::string_view text) const {
  if (const size_t at = text.find(mark_); at != text.npos) return at;
  size_t held = std::min(text.size(), mark_.size() - 1);
  while (!text.ends_with(std::string_view(mark_).substr(0, held))) --held;
  return text.size() - held;
}

}  // namespace twinkle::server::openai
