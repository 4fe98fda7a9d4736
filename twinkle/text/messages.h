// A row's messages as a chat template wants them: checked, without nulls, with the default system
// message, reasoning, tool calls and content parts in the one form that the template reads. The row
// itself is not changed.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/text/rust/chat_template.h"

namespace twinkle::text {

struct MessageOptions {
  std::string default_system;    // put first when the row begins with a user message; empty: none
  bool takes_parts = false;      // content may stay a list of text parts; else they are joined
  bool reads_reasoning = false;  // the template writes reasoning; else it goes into <think>
  bool takes_argument_text = false;  // a call's arguments may stay JSON text; else they are parsed
  bool names_reasoning = true;       // under every name that a template may read
  // The content of a message with tool calls whose own is missing or null; nothing: it stays
  // missing.
  std::optional<Json> absent_content;
};

struct Prepared {
  Json messages, tools;
  JsonObject variables;  // the row's chat_template_kwargs
  // Indices into `messages` of the assistant messages to train: all but those whose own weight (or
  // loss, loss_weight, loss_mask, train, training, trainable, do_train) is 0 or false, and but
  // those that user_data's key_rounds leaves out, which counts the messages of the row as it was
  // given.
  std::vector<size_t> trained;
  bool is_limited = false;  // `trained` is not all of them
  size_t num_added = 0;     // messages that were put before those of the row
};

// The role that another form of chats means: user for human, assistant for gpt, model and bot,
// upper case as lower. Any other role as it is.
std::string usual_role(std::string_view role);

// The first message whose role is not its usual one; nothing: there is none.
std::optional<size_t> other_role(const Json& trajectory);

// Error kInvalid: a message that is not the assistant's says that it is to be trained, by name.
void refuse_weights_of_others(const Json& trajectory);

// Error kInvalid: no messages, an empty list, a message without role, a part or a content that is
// not text, key_rounds or a weight out of range, a field of another form of chats that would be
// lost (function_call, mask); each names the field and the value.
Prepared prepare(const Json& trajectory, const MessageOptions& options);

// The messages in their standard form: texts as contents, reasoning in reasoning_content, tool
// calls as lists with objects of arguments; and `system`, unless it is empty, in front of a user
// message. Error kInvalid: as prepare's; calls or arguments that are text without such JSON.
JsonArray standard_messages(const Json& messages, const std::string& system);

// The text of a content that is a string or a list of text parts. Error kInvalid: other parts.
std::string plain_text(const Json& content, size_t message_index);

// user_data's value of `key`: user_data is a list of [key, value] pairs, or an object; a text that
// is JSON is parsed.
std::optional<Json> user_data_get(const Json& trajectory, std::string_view key);

}  // namespace twinkle::text
