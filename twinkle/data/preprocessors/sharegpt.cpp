// ShareGPT's `conversations`: turns with `from` and `value`, which keep what else they say (weight,
// tool_calls); and perhaps the columns system and history.
#include <utility>

#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/text/messages.h"

namespace twinkle::data {
namespace {

std::string role_of(std::string_view field, std::string_view from) {
  const std::string role = text::usual_role(from);
  require(role == "user" || role == "assistant" || role == "system" || role == "tool",
          Code::kInvalid, "data: field '", field, "' of a turn is '", from.substr(0, 40),
          "', expected human, user, gpt, model, bot, assistant, system or tool");
  return role;
}

// A turn has 'from' and 'value', or 'role' and 'content'.
JsonObject message_of(const Row& turn) {
  const bool has_role = turn.contains("role") && !turn.contains("from");
  const std::string_view who = has_role ? "role" : "from", what = has_role ? "content" : "value";
  JsonObject out = message(role_of(who, text_field(turn, who)), text_field(turn, what));
  for (const auto& [key, value] : turn)
    if (std::string_view(key) != who && std::string_view(key) != what) out.emplace(key, value);
  return out;
}

Row conversation(const Row& row) {
  const std::string_view field = row.contains("conversations") ? "conversations" : "messages";
  const Json* turns = row.if_contains(field);
  require(turns && turns->is_array() && !turns->get_array().empty(), Code::kInvalid,
          "data: field 'conversations' is missing or not a list of turns with 'from' and 'value'");
  JsonArray messages;
  for (const Json& turn : turns->get_array()) {
    require(turn.is_object(), Code::kInvalid, "data: field '", field, "' holds ",
            boost::json::serialize(turn).substr(0, 80),
            ", expected an object with 'from' and 'value'");
    messages.push_back(message_of(turn.get_object()));
  }
  return {{"messages", with_earlier_messages(row, std::move(messages))}};
}

}  // namespace

PreprocessorKind sharegpt() {
  return {.name = "ShareGPTProcessor",
          .defaults = {},
          .make = [](const JsonObject&) -> Preprocessor { return conversation; }};
}

}  // namespace twinkle::data
