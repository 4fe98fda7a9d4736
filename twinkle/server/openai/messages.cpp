#include "twinkle/server/openai/messages.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "twinkle/base/error.h"
#include "twinkle/server/replay/brief.h"

namespace twinkle::server::openai {
namespace {

constexpr size_t kShown = 80;  // bytes of a value in an error's text

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};
constexpr std::array<std::string_view, 6> kMessageFields = {
    "role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content"};

// Error kInvalid: content that is no text, by its type.
void require_text(const Json& content, const std::string& at) {
  if (content.is_string()) return;
  require(content.is_array() && !content.get_array().empty(), Code::kInvalid, "openai: ", at,
          " is ", shown(content), ", it must be a text, or a list of parts of text");
  for (const Json& part : content.get_array()) {
    const auto type = get_or<std::string>(part, "type", "");
    const Json* text = find(part, "text");
    require(type == "text" && text && text->is_string(), Code::kInvalid, "openai: ", at,
            " has a part of type '", shown(type), "', this server's models read text alone");
  }
}

void require_calls(const Json& calls, const std::string& at) {
  require(calls.is_array(), Code::kInvalid, "openai: ", at, " is ", shown(calls),
          ", it must be a list of calls");
  for (const Json& call : calls.get_array()) {
    const Json* function = find(call, "function");
    const Json* name = function ? find(*function, "name") : nullptr;
    const Json* arguments = function ? find(*function, "arguments") : nullptr;
    const auto object =
        arguments && arguments->is_string() ? json_in(arguments->get_string()) : std::nullopt;
    require(name && name->is_string() && object && object->is_object(), Code::kInvalid,
            "openai: ", at, " holds ", shown(call),
            ", each must have a function with a name and arguments, the JSON text of an object");
  }
}

Json message_of(const Json& given, const std::string& at) {
  require(given.is_object(), Code::kInvalid, "openai: ", at, " is ", shown(given),
          ", it must be an object with role and content");
  Json out = JsonObject();
  for (const auto& [key, value] : given.get_object()) {
    const std::string name(key);
    // A client may send a reply back with all that it got.
    if (value.is_null() || (name != "content" && value == Json(JsonArray()))) continue;
    require(std::ranges::find(kMessageFields, name) != kMessageFields.end(), Code::kInvalid,
            "openai: ", at, ".", shown(name), " is not read by this server; leave it out");
    out.get_object()[name] = value;
  }
  const auto role = get_or<std::string>(out, "role", "");
  require(std::ranges::find(kRoles, role) != kRoles.end(), Code::kInvalid, "openai: ", at,
          ".role is '", shown(role), "', it must be system, developer, user, assistant or tool");
  if (role == "developer") out.get_object()["role"] = "system";  // as templates know it
  const Json* calls = find(out, "tool_calls");
  const Json* content = find(out, "content");
  require(!calls || role == "assistant", Code::kInvalid, "openai: ", at,
          ".tool_calls is not for a message of role '", role, "'; leave it out");
  if (calls) require_calls(*calls, at + ".tool_calls");
  require(content || calls, Code::kInvalid, "openai: ", at, ".content is missing");
  if (content) require_text(*content, at + ".content");
  return out;
}

// True if the model may call one.
bool read_tools(const Json& body, JsonObject& out) {
  const Json* tools = find(body, "tools");
  const Json* choice = find(body, "tool_choice");
  require(!choice || *choice == "auto" || *choice == "none", Code::kInvalid,
          "openai: tool_choice is ", shown(*choice), ", this server takes \"auto\" and \"none\"");
  if (!tools || (tools->is_array() && tools->get_array().empty())) return false;
  require(tools->is_array(), Code::kInvalid, "openai: tools is ", shown(*tools),
          ", it must be a list of functions");
  for (const Json& tool : tools->get_array()) {
    const Json* function = find(tool, "function");
    const Json* name = function ? find(*function, "name") : nullptr;
    require(get_or<std::string>(tool, "type", "") == "function" && name && name->is_string(),
            Code::kInvalid, "openai: tools holds ", shown(tool),
            ", each must be of type function and have a function with a name");
    require(!get_or(*function, "strict", false), Code::kInvalid, "openai: tools has strict: true",
            ", which this server does not do; leave it out");
  }
  if (choice && *choice == "none") return false;
  out["tools"] = *tools;
  return true;
}

}  // namespace

std::string shown(const Json& value) {
  const std::string text = boost::json::serialize(value);
  return quoted(std::string(beginning(text, kShown)) + (text.size() > kShown ? "..." : ""));
}
std::string shown(const std::string& name) { return quoted(std::string(beginning(name, kShown))); }

JsonObject conversation_of(const Json& body, bool& has_tools) {
  const Json* messages = find(body, "messages");
  require(messages && messages->is_array() && !messages->get_array().empty(), Code::kInvalid,
          "openai: messages is ", messages ? shown(*messages) : "missing",
          ", it must be a list of messages with role and content");
  JsonObject out;
  JsonArray list;
  for (const Json& one : messages->get_array())
    list.push_back(message_of(one, "messages[" + std::to_string(list.size()) + "]"));
  out["messages"] = std::move(list);
  has_tools = read_tools(body, out);
  if (const Json* variables = find(body, "chat_template_kwargs")) {
    require(variables->is_object(), Code::kInvalid, "openai: chat_template_kwargs is ",
            shown(*variables), ", it must be an object of names that the chat template reads");
    out["chat_template_kwargs"] = *variables;
  }
  return out;
}

}  // namespace twinkle::server::openai
