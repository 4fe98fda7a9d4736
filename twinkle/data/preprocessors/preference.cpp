// Preference pairs, `positive` and `negative` a trajectory each, of the columns chosen and
// rejected. TRL's are replies, texts or lists of messages, to the column prompt, a text or such a
// list; or whole chats, whose common start is the prompt. LLaMA-Factory's are one reply each, as a
// message or a turn, to conversations, or texts after instruction and input. Only the replies are
// trained.
#include <algorithm>
#include <utility>

#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/text/columns.h"

namespace twinkle::data {
namespace {

JsonArray messages_of(const Row& row, std::string_view field, std::string_view role) {
  const Json* value = row.if_contains(field);
  if (value && (value->is_array() || value->is_object())) return sharegpt_messages(*value, field);
  return {message(role, text_field(row, field))};
}

bool is_reply(const Json& message) { return message.at("role") == "assistant"; }

// The messages before the replies, of whichever column has them.
JsonArray prompt_of(const Row& row) {
  if (!text::says_nothing(row.if_contains("conversations")))
    return messages_of(row, "conversations", "user");
  for (const char* name : {"prompt", "question", "query"})
    if (const Json* value = row.if_contains(name); value && !value->is_null())
      return messages_of(row, name, "user");
  if (row.contains("instruction")) return {message("user", instruction_of(row))};
  return {};
}

Row pair_of(const Row& row, const Json& system) {
  JsonArray chosen = messages_of(row, "chosen", "assistant"),
            rejected = messages_of(row, "rejected", "assistant"), prompt;
  const auto is_whole = [](const JsonArray& chat) { return !chat.empty() && !is_reply(chat[0]); };
  if (is_whole(chosen) && is_whole(rejected)) {
    const auto differ =
        std::mismatch(chosen.begin(), chosen.end(), rejected.begin(), rejected.end());
    prompt = JsonArray(chosen.begin(), differ.first);
    chosen.erase(chosen.begin(), chosen.begin() + std::ssize(prompt));
    rejected.erase(rejected.begin(), rejected.begin() + std::ssize(prompt));
  } else {
    prompt = prompt_of(row);
  }
  require(!prompt.empty(), Code::kInvalid,
          "data: fields 'chosen' and 'rejected' have no prompt in common; they are two replies to "
          "the field 'prompt', or chats with the same first messages");
  prompt = with_earlier_messages(row, std::move(prompt), system);
  leave_untrained(prompt);
  const auto trajectory = [&prompt](const JsonArray& replies, const char* field) -> JsonObject {
    require(std::ranges::any_of(replies, is_reply), Code::kInvalid, "data: field '", field,
            "' has no reply of the assistant after the prompt");
    JsonArray messages = prompt;
    messages.insert(messages.end(), replies.begin(), replies.end());
    return {{"messages", std::move(messages)}};
  };
  Row out{{"positive", trajectory(chosen, "chosen")},
          {"negative", trajectory(rejected, "rejected")}};
  add_tools(row, out);
  return out;
}

}  // namespace

PreprocessorKind preference() {
  return {.name = "PreferenceProcessor",
          .defaults = {{"system", nullptr}},
          .make = [](const JsonObject& arguments) -> Preprocessor {
            return
                [system = arguments.at("system")](const Row& row) { return pair_of(row, system); };
          },
          .not_for_tuning =
              "it makes pairs of chats, for preference optimization: docs/preferences.md"};
}

}  // namespace twinkle::data
