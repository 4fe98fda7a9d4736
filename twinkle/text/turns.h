// The bytes of a rendered conversation that the assistant wrote, and their tokens. Linear in the
// length of the conversation: it is rendered a fixed number of times and tokenised once.
//
// With {% generation %} blocks they are the bytes that these enclose. Elsewhere the rule of prefix
// differences gives them: of turn i, what the conversation up to and with it has beyond the
// conversation before it with the generation prompt. The marks that a rendering leaves at its
// messages give these places without rendering every prefix. They also say what the rule cannot
// where a template renders a turn otherwise once others follow (Qwen3 drops old reasoning): the
// turn as it stands in the whole conversation. Where the marks leave a turn's place uncertain, its
// prefixes are rendered. A tool's result or a list of tools that stands within a turn makes it an
// error.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/text/messages.h"
#include "twinkle/text/rust/chat_template.h"
#include "twinkle/text/rust/tokenizer.h"

namespace twinkle::text {

inline constexpr int64_t kIgnored = -100;  // the label of a token that is not learnt

enum class Rule { kGeneration, kPrefix };

struct Reply {
  size_t message = 0;  // index into Prepared::messages
  Span place;
};

struct Turns {
  std::string text;
  std::vector<Span> written;   // rising, not overlapping
  std::vector<Reply> replies;  // `prepared.trained`'s; with kGeneration those of a certain place
  Rule rule = Rule::kPrefix;
};

// The whole conversation and the spans of the turns of `prepared.trained`. Error kInvalid: the
// template failed, or neither its marks nor the prefixes show what the assistant wrote.
Turns render_turns(const ChatTemplate& chat, const Conversation& conversation,
                   const Prepared& prepared);

// labels[t] = ids[t] for the tokens of the spans, kIgnored elsewhere (not shifted). kGeneration
// follows transformers' return_assistant_tokens_mask: from the token of a span's first character to
// that of its last one. kPrefix: tokens that begin inside a span, and one that joins its begin with
// blanks before it, as " yes" where the prompt ends in a space.
std::vector<int64_t> label_tokens(const std::string& text, const Encoding& encoding,
                                  const std::vector<Span>& written, Rule rule);

// Error kInvalid: a reply of `prepared.trained` without a label; the text names it.
void require_trained(const Turns& turns, const Prepared& prepared, const Encoding& encoding,
                     const std::vector<int64_t>& labels);

}  // namespace twinkle::text
