// The served model's tokenizer and chat template: prompts of requests as tokens, tokens as text,
// and the calls of tools in it. Immutable: any thread.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/server/openai/request.h"
#include "twinkle/text/stream/pieces.h"
#include "twinkle/text/template.h"
#include "twinkle/text/tools/format.h"

namespace twinkle::server::openai {

class Texts {
 public:
  // Reads the model's files. Error kInternal: they are broken.
  static std::shared_ptr<const Texts> of_model(const std::filesystem::path& model);

  // One list of tokens for each prompt, a chat's one. Error kInvalid: the model has no chat
  // template, or one that writes no calls where there are tools; what the template refuses.
  std::vector<std::vector<int32_t>> prompts_of(const Asked& asked) const;

  // One token as it is, with special ones written out.
  std::string token(int32_t id) const;
  // All of them, without special ones where these are not wanted.
  std::string text(std::span<const int32_t> ids, bool special) const;
  // The text of tokens as they come, without special ones.
  text::TextPieces pieces() const;

  // A reply with the calls of tools taken out of it.
  struct Reply {
    std::string content;
    std::vector<text::ToolCall> calls = {};
  };
  Reply reply_of(std::string text) const;
  // How many bytes of a reply that goes on are no part of a call, whatever follows.
  size_t settled(std::string_view text) const;

 private:
  Texts() = default;

  std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::optional<text::Template> chat_;       // none: the model has no chat template
  const text::ToolFormat* calls_ = nullptr;  // in which the template writes calls, if it does
  std::string mark_;                         // that begins one
};

}  // namespace twinkle::server::openai
