// ShareGPT's `conversations`: turns with `from` and `value`, which keep what else they say (weight,
// tool_calls); and perhaps the columns system, history and tools. As LLaMA-Factory has them, a turn
// of function_call holds calls as JSON text, and one of observation the results.
#include <utility>

#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/text/columns.h"
#include "twinkle/text/messages.h"

namespace twinkle::data {
namespace {

std::string brief(const Json& value) { return boost::json::serialize(value).substr(0, 80); }

std::string role_of(std::string_view from) {
  const std::string role = from == "observation" ? "tool" : text::usual_role(from);
  require(role == "user" || role == "assistant" || role == "system" || role == "tool",
          Code::kInvalid, "data: field 'from' of a turn is '", from.substr(0, 40),
          "', expected human, user, gpt, model, bot, assistant, system, tool, observation or "
          "function_call");
  return role;
}

// [call] of {"name": ..., "arguments": ...}; a list of such as it is.
JsonArray calls_of(const Json& value) {
  const auto in_text = value.is_string() ? json_in(value.get_string()) : std::nullopt;
  const Json given = in_text.value_or(value);
  JsonArray calls;
  for (const Json& function : given.is_array() ? given.get_array() : JsonArray{given}) {
    const Json* name = find(function, "name");
    require(name && name->is_string(), Code::kInvalid,
            "data: field 'value' of a turn of function_call is ", brief(value),
            ", expected {\"name\": ..., \"arguments\": ...}, or a list of them, as JSON text");
    calls.push_back({{"type", "function"}, {"function", function}});
  }
  return calls;
}

// A turn has 'from' and 'value', or 'role' and 'content', whatever the latter hold.
JsonObject message_of(const Row& turn) {
  const bool has_role = turn.contains("role") && !turn.contains("from");
  const std::string_view who = has_role ? "role" : "from", what = has_role ? "content" : "value";
  const std::string from = text_field(turn, who);
  JsonObject out;
  if (from == "function_call" && !has_role) {
    out = {{"role", "assistant"},
           {"tool_calls", calls_of(turn.contains(what) ? turn.at(what) : Json())}};
  } else if (has_role) {
    out = {{"role", text::usual_role(from)}};
    if (const Json* content = turn.if_contains(what)) out[what] = *content;
  } else if (text::says_nothing(turn.if_contains("tool_calls"))) {
    out = message(role_of(from), text_field(turn, what));
  } else {
    out = {{"role", role_of(from)}};
    if (const std::string said = text_field_or_empty(turn, what); !said.empty())
      out["content"] = said;
  }
  for (const auto& [key, value] : turn)
    if (std::string_view(key) != who && std::string_view(key) != what) out.emplace(key, value);
  return out;
}

Row conversation(const Row& row) {
  const std::string_view field = row.contains("conversations") ? "conversations" : "messages";
  const Json* turns = row.if_contains(field);
  require(turns && turns->is_array() && !turns->get_array().empty(), Code::kInvalid,
          "data: field 'conversations' is missing or not a list of turns with 'from' and 'value'");
  Row out{{"messages", with_earlier_messages(row, sharegpt_messages(*turns, field))}};
  add_tools(row, out);
  return out;
}

}  // namespace

JsonArray sharegpt_messages(const Json& turns, std::string_view field) {
  JsonArray messages;
  for (const Json& turn : turns.is_array() ? turns.get_array() : JsonArray{turns}) {
    require(turn.is_object(), Code::kInvalid, "data: field '", field, "' holds ", brief(turn),
            ", expected an object with 'from' and 'value'");
    messages.push_back(message_of(turn.get_object()));
  }
  return messages;
}

void add_tools(const Row& row, Row& out) {
  const Json* given = row.if_contains("tools");
  if (text::says_nothing(given)) return;
  Json tools = *given;
  if (tools.is_string()) tools = json_in(tools.get_string()).value_or(tools);
  if (!tools.is_array()) return;  // the template's to refuse
  for (Json& tool : tools.get_array())
    if (find(tool, "name") && !find(tool, "function"))
      tool = {{"type", "function"}, {"function", tool}};
  out["tools"] = std::move(tools);
}

PreprocessorKind sharegpt() {
  return {.name = "ShareGPTProcessor",
          .defaults = {},
          .make = [](const JsonObject&) -> Preprocessor { return conversation; }};
}

}  // namespace twinkle::data
