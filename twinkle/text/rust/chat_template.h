// A model's chat template: messages to text, in the Jinja environment that `transformers` gives it,
// by the crate in rust/text. Knows no tokens. Immutable after construction: any number of threads
// may use one.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "twinkle/base/json.h"

struct twinkle_chat;

namespace twinkle::text {

// The template's input. `messages` and `tools` are JSON lists; `variables` are further names that
// it can read (special tokens, enable_thinking).
struct Conversation {
  Json messages;
  Json tools;  // null or empty: none
  JsonObject variables;
  std::optional<int64_t> now = {};  // seconds since 1970, for strftime_now; none: the clock's
};

struct RenderRequest {
  size_t num_messages = SIZE_MAX;  // only the first so many
  bool add_generation_prompt = false;
  bool blocks = false;  // fill `generated`
  // Fill `turns` and `tools`; a template may write another text because of it, or none.
  bool turns = false;
};

struct Span {
  size_t begin = 0, end = 0;  // bytes of a text
  bool operator==(const Span&) const = default;
};

struct Rendering {
  std::string text;
  std::vector<Span> generated;             // one for each generation block
  std::vector<std::optional<Span>> turns;  // one for message i; none where its place is not certain
  std::vector<size_t> tools;               // bytes within a list of tools
};

class ChatTemplate {
 public:
  // From DIRECTORY's chat_template.jinja, additional_chat_templates/NAME.jinja, chat_template.json,
  // or "chat_template" of tokenizer_config.json (text, or a list of {name, template}). Error
  // kNotFound: none of them; kInvalid: not Jinja.
  static ChatTemplate of_directory(const std::filesystem::path& directory);
  explicit ChatTemplate(std::string source);

  // Renders one conversation in several ways. Error kInvalid: what the template raised, or where it
  // failed, and the role of a message without content, which few templates take.
  std::vector<Rendering> render(const Conversation& conversation,
                                std::span<const RenderRequest> requests) const;
  std::string render(const Conversation& conversation, bool add_generation_prompt = false) const;

  bool has_generation(bool with_tools) const;  // the template has {% generation %} blocks
  // True if a message's content may be a list of {"type": "text", "text": ..} parts.
  bool takes_parts() const { return takes_parts_; }
  // True if a reply's reasoning_content, thinking or reasoning is written, or may be.
  bool reads_reasoning() const { return reads_reasoning_; }
  // True if a tool call's arguments that are JSON text are written as that text, as DeepSeek's and
  // Qwen3's templates do; others would write them as a JSON string within JSON.
  bool takes_argument_text() const { return takes_argument_text_; }
  // False: no tool call is ever written.
  bool writes_calls() const { return writes_calls_; }
  // The content to use in a message with tool calls and none of its own, if the template fails
  // without one: null (DeepSeek's) or an empty text (Qwen3's first). Else nothing.
  const std::optional<Json>& absent_content() const { return absent_content_; }

 private:
  struct Close {
    void operator()(twinkle_chat* handle) const;
  };
  struct Source {
    std::string name, text;
    std::unique_ptr<twinkle_chat, Close> handle;
  };

  explicit ChatTemplate(std::vector<std::pair<std::string, std::string>> sources);
  const Source& pick(bool with_tools) const;
  // These messages with special tokens, and maybe a tool, rendered; empty if that fails.
  std::string probe(bool with_tools, const JsonArray& messages) const;

  std::vector<Source> sources_;
  bool takes_parts_ = false, takes_argument_text_ = false, reads_reasoning_ = false;
  bool writes_calls_ = false;
  std::optional<Json> absent_content_;
};

}  // namespace twinkle::text
