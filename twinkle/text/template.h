// Template: rows of messages to tokens and labels, and back. What a model directory's tokenizer and
// chat template say, `transformers` says, too: the tokens are those of its apply_chat_template.
// Immutable after construction: any number of threads may use one. Knows no tensors.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/text/messages.h"
#include "twinkle/text/rust/chat_template.h"
#include "twinkle/text/rust/tokenizer.h"

namespace twinkle::text {

// Treatment of a row of more than max_length tokens: an error, its last or first max_length tokens,
// pieces of max_length tokens, or nothing.
enum class Truncation { kRaise, kLeft, kRight, kSplit, kDelete };

// "raise", "left", "right", "split", "delete". Error kInvalid: another name.
Truncation truncation_of(std::string_view name);

struct TemplateOptions {
  bool use_chat_template = true;  // false: a row is one user message, plain text, all of it trained
  int64_t max_length = 8192;      // tokens; 0: no limit
  Truncation truncation = Truncation::kRaise;
  std::string default_system;       // for rows that begin with a user message; empty: none
  bool enable_thinking = true;      // passed on to the chat template
  std::optional<int64_t> now = {};  // seconds since 1970 for strftime_now; none: the clock's
};

// L tokens. labels[t] is the token that position t is to predict, input_ids[t + 1], where the
// assistant wrote that, and -100 elsewhere and last. The attention mask is all ones and the
// positions are 0 .. L - 1.
struct InputFeature {
  std::vector<int64_t> input_ids;
  std::vector<int64_t> labels;

  int64_t length() const { return static_cast<int64_t>(input_ids.size()); }
};

class Template {
 public:
  // Error kNotFound: no tokenizer.json, or no chat template where one is to be used; kInvalid:
  // broken files, a negative max_length.
  explicit Template(const std::filesystem::path& model, TemplateOptions options = {});

  // One feature per row; with kSplit as many as it needs, with kDelete none for a row that is too
  // long. With the generation prompt there are no labels. Error kInvalid: a row without messages,
  // or too long (with length and limit), a template that raises, or renders nothing; the text names
  // the field and the cause.
  std::vector<InputFeature> encode(const Json& trajectory,
                                   bool add_generation_prompt = false) const;

  // encode of every row on all cores, in their order. Error: of the lowest bad row, with its index.
  std::vector<std::vector<InputFeature>> batch_encode(std::span<const Json> trajectories,
                                                      bool add_generation_prompt = false) const;

  // Why `encode` yields nothing for the row; none: it does yield something.
  std::optional<std::string> check(const Json& trajectory) const;

  // `feature` and sampled tokens after it, which are trained. Error kInvalid: kSplit or kDelete
  // with a result that is too long, kRaise likewise; token ids below 0.
  InputFeature concat_input_feature(const InputFeature& feature,
                                    std::span<const int64_t> new_tokens) const;

  std::string decode(std::span<const int64_t> ids, bool skip_special_tokens = false) const;
  std::vector<std::string> batch_decode(std::span<const std::vector<int64_t>> rows,
                                        bool skip_special_tokens = false) const;

  // The text that encode tokenises. Error kInvalid: as encode; without a chat template.
  std::string render(const Json& trajectory, bool add_generation_prompt = false) const;

  // False: tool calls are rendered as JSON in a reply's content, since the chat template knows
  // none.
  bool writes_calls() const { return !chat_ || chat_->writes_calls(); }

  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const TemplateOptions& options() const { return options_; }

 private:
  struct Labelled {
    std::vector<int64_t> ids, labels;  // labels not yet shifted
  };

  MessageOptions message_options() const;
  Conversation conversation(const Prepared& prepared) const;
  Json with_usual_roles(const Json& trajectory, size_t first) const;
  Labelled encode_chat(const Json& trajectory, bool add_generation_prompt) const;
  Labelled encode_plain(const Json& trajectory) const;
  std::vector<InputFeature> fit(Labelled row) const;

  TemplateOptions options_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  std::optional<ChatTemplate> chat_;  // none when use_chat_template is false
};

}  // namespace twinkle::text
