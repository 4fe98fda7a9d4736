// ShareGPT's `conversations`: turns with `from` and `value`, and perhaps a `system` prompt.
#include <algorithm>
#include <array>
#include <utility>

#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::data {
namespace {

std::string_view role_of(std::string_view from) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kRoles = {
      {{"human", "user"},
       {"user", "user"},
       {"gpt", "assistant"},
       {"assistant", "assistant"},
       {"model", "assistant"},
       {"system", "system"},
       {"tool", "tool"}}};
  const auto* known = std::find_if(kRoles.begin(), kRoles.end(),
                                   [&](const auto& role) { return role.first == from; });
  require(known != kRoles.end(), Code::kInvalid, "data: field 'from' of a turn is '",
          from.substr(0, 40), "', expected human, user, gpt, assistant, model, system or tool");
  return known->second;
}

Row conversation(const Row& row) {
  const Json* turns = row.if_contains("conversations");
  require(turns && turns->is_array() && !turns->get_array().empty(), Code::kInvalid,
          "data: field 'conversations' is missing or not a list of turns with 'from' and 'value'");
  JsonArray messages;
  if (const std::string system = text_field_or_empty(row, "system"); !system.empty())
    messages.push_back(message("system", system));
  for (const Json& turn : turns->get_array()) {
    require(turn.is_object(), Code::kInvalid, "data: field 'conversations' holds ",
            boost::json::serialize(turn).substr(0, 80),
            ", expected an object with 'from' and 'value'");
    messages.push_back(message(role_of(text_field(turn.get_object(), "from")),
                               text_field(turn.get_object(), "value")));
  }
  return {{"messages", std::move(messages)}};
}

}  // namespace

PreprocessorKind sharegpt() {
  return {.name = "ShareGPTProcessor",
          .defaults = {},
          .make = [](const JsonObject&) -> Preprocessor { return conversation; }};
}

}  // namespace twinkle::data
