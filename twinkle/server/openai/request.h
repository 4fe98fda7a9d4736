// Requests of chats and completions as values, with OpenAI's names and limits. An option that would
// change results and is not done here is refused by its name. Knows no model and no tokens.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/engine/protocol/operation.h"

namespace twinkle::server::openai {

enum class Form { kChat = 1, kCompletion = 2 };

using Prompt = std::variant<std::string, std::vector<int32_t>>;

struct Asked {
  Form form = Form::kChat;
  std::string model;
  JsonObject conversation;      // a chat's: messages, tools, chat_template_kwargs
  std::vector<Prompt> prompts;  // a completion's
  bool has_tools = false;       // that the model may call
  bool echo = false, stream = false, include_usage = false;
  std::optional<int64_t> max_tokens;  // none: what the context has room for
  engine::SamplingParams params;      // but for max_tokens
};

// `seed`: where the request has none. Error kInvalid: "openai: FIELD ...", with the value, the
// limit and the remedy.
Asked read(const Json& body, Form form, uint64_t seed);

// A name of a request's field.
bool is_field(std::string_view name);

}  // namespace twinkle::server::openai
