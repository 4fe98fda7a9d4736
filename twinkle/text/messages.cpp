#include "twinkle/text/messages.h"

#include <algorithm>
#include <array>
#include <boost/algorithm/string/predicate.hpp>
#include <utility>

#include "twinkle/text/columns.h"
#include "twinkle/text/forms.h"

namespace twinkle::text {
namespace {

constexpr std::string_view kThinkBegin = "<think>";
constexpr std::string_view kThinkEnd = "</think>";

std::string_view strip_newlines(std::string_view text) {
  while (text.starts_with('\n')) text.remove_prefix(1);
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// The value of a text that holds JSON of the wanted kind, else nothing.
std::optional<Json> parsed(const Json& text, bool (Json::*is_wanted)() const noexcept) {
  if (!text.is_string()) return std::nullopt;
  std::optional<Json> value = json_in(text.get_string());
  if (!value || !((*value).*is_wanted)()) return std::nullopt;
  return value;
}

bool is_object(const Json& v) { return v.is_object(); }

JsonObject without_nulls(const JsonObject& fields) {
  JsonObject out;
  for (const auto& [key, value] : fields)
    if (!value.is_null()) out[key] = value;
  return out;
}

Json content_for(const Json& content, size_t index, bool takes_parts) {
  if (!content.is_array()) return content;
  std::string text = plain_text(content, index);  // checks the parts, too
  if (!takes_parts) return Json(text);
  JsonArray parts;
  for (const Json& part : content.get_array())
    parts.push_back(part.is_object() ? Json(without_nulls(part.get_object()))
                                     : Json{{"type", "text"}, {"text", part}});
  return parts;
}

// The names under which reasoning is passed; `reasoning_content` is what most templates read,
// gpt-oss reads `thinking`, Solar `reasoning`.
void alias_reasoning(JsonObject& message) {
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const Json* value = message.if_contains(name);
    if (!value) continue;
    const Json reasoning = *value;
    if (!message.contains("thinking")) {
      JsonObject first{{"thinking", reasoning}};
      for (auto& [key, item] : message) first[key] = item;
      message = std::move(first);
    }
    message["reasoning_content"] = reasoning;
    message.emplace("reasoning", reasoning);
    return;
  }
}

// Reasoning stands in `reasoning_content` where the template reads that, in <think> tags of the
// content elsewhere.
void normalise_reasoning(JsonObject& message, bool reads_reasoning) {
  Json* content = message.if_contains("content");
  const Json* reasoning = message.if_contains("reasoning_content");
  if (!content || !content->is_string()) return;
  const std::string text(content->get_string());
  if (reads_reasoning && !reasoning) {
    const size_t first = text.find(kThinkEnd), last = text.rfind(kThinkEnd);
    if (first == text.npos) return;
    std::string_view thought = std::string_view(text).substr(0, first);
    while (thought.ends_with('\n')) thought.remove_suffix(1);
    if (const size_t open = thought.rfind(kThinkBegin); open != thought.npos)
      thought.remove_prefix(open + kThinkBegin.size());
    std::string_view answer = std::string_view(text).substr(last + kThinkEnd.size());
    while (answer.starts_with('\n')) answer.remove_prefix(1);
    message["content"] = answer;
    message["reasoning_content"] = strip_newlines(thought);
  } else if (!reads_reasoning && reasoning && reasoning->is_string() &&
             !reasoning->get_string().empty() && text.find(kThinkEnd) == text.npos) {
    const std::string thought(strip_newlines(std::string_view(reasoning->get_string())));
    *content = "<think>\n" + thought + "\n</think>\n\n" + text;
  }
}

void normalise_tool_calls(JsonObject& message, bool takes_argument_text) {
  Json* calls = message.if_contains("tool_calls");
  if (!calls) return;
  if (const auto list = parsed(*calls, &Json::is_array)) *calls = *list;
  if (!calls->is_array() || takes_argument_text) return;
  for (Json& call : calls->get_array()) {
    if (!call.is_object()) continue;
    Json* function = call.get_object().if_contains("function");
    Json& holder = function && is_object(*function) ? *function : call;
    Json* arguments = holder.get_object().if_contains("arguments");
    if (!arguments) continue;
    if (const auto object = parsed(*arguments, &Json::is_object)) *arguments = *object;
  }
}

// Fields of other forms of chats that would be lost, and what to write in their place.
constexpr std::array<std::array<std::string_view, 2>, 4> kLost = {
    {{"function_call",
      "the old form of calls; write 'tool_calls', [{\"type\": \"function\", \"function\": "
      "{\"name\": "
      "..., \"arguments\": ...}}]"},
     {"mask", "not read; write 'weight', 0 for a reply that is not trained"},
     {"masked", "not read; write 'weight', 0 for a reply that is not trained"},
     {"train_detail", "not read: a reply is trained as a whole, or by 'weight' 0 not at all"}}};

void refuse_lost(const Json& message, const std::string& path) {
  for (const auto& [name, remedy] : kLost) {
    const Json* value = find(message, name);
    require(says_nothing(value) || truth(*value) == false, Code::kInvalid, "text: field '", path,
            name, "' is ", remedy);
  }
}

constexpr std::array<std::string_view, 8> kWeights = {
    "weight", "loss", "loss_weight", "loss_mask", "train", "training", "trainable", "do_train"};

// False: a field of the assistant's message says that it is not to be trained.
bool is_wanted(const JsonObject& message, size_t index) {
  bool out = true;
  for (const std::string_view name : kWeights) {
    const Json* value = message.if_contains(name);
    if (!value) continue;
    const std::optional<bool> yes = truth(*value);
    require(yes.has_value(), Code::kInvalid, "text: field 'messages[", index, "].", name, "' is ",
            boost::json::serialize(*value), ", it must be 0 or 1, true or false");
    out &= *yes;
  }
  return out;
}

void check_content(const Json& given, size_t index) {
  const Json* content = given.get_object().if_contains("content");
  if (!content || content->is_string() || content->is_array()) return;
  const Json& role = given.at("role");
  if (content->is_object()) {  // as the result of a tool is
    require(role != "user" && role != "assistant" && role != "system", Code::kInvalid,
            "text: field 'messages[", index, "].content' is ",
            boost::json::serialize(*content).substr(0, 80),
            ", it must be a text, or a list of parts");
    return;
  }
  require(content->is_null() && find(given, "tool_calls"), Code::kInvalid, "text: field 'messages[",
          index, "].content' is ", boost::json::serialize(*content), ", it must be a text");
}

JsonObject message_of(const Json& given, size_t index, const MessageOptions& options) {
  require(given.is_object(), Code::kInvalid, "text: field 'messages[", index,
          "]' is not an object with role and content");
  JsonObject message = without_nulls(given.get_object());
  const Json* role = message.if_contains("role");
  require(
      role && role->is_string(), Code::kInvalid, "text: field 'messages[", index,
      "].role' is missing or not a string",
      message.contains("from") ? "; ShareGPTProcessor reads turns with 'from' and 'value'" : "");
  const bool is_assistant = *role == "assistant";
  check_content(given, index);
  refuse_lost(given, "messages[" + std::to_string(index) + "].");
  if (Json* content = message.if_contains("content"))
    *content = content_for(*content, index, options.takes_parts);
  if (options.names_reasoning) alias_reasoning(message);
  if (is_assistant) {
    if (options.absent_content && message.contains("tool_calls") && !message.contains("content"))
      message["content"] = *options.absent_content;
    normalise_tool_calls(message, options.takes_argument_text);
    normalise_reasoning(message, options.reads_reasoning);
  }
  return message;
}

// Error kInvalid: a call or its arguments that are no objects.
void require_calls(const JsonObject& message, size_t index) {
  const Json* calls = message.if_contains("tool_calls");
  if (!calls) return;
  const auto refuse = [index](const Json& value, const char* field, const char* must) {
    fail(Code::kInvalid, "text: field 'messages[", index, "].tool_calls", field, "' is ",
         boost::json::serialize(value).substr(0, 80), ", it must be ", must);
  };
  if (!calls->is_array()) refuse(*calls, "", "a list of calls, or its JSON text");
  for (const Json& call : calls->get_array()) {
    if (!call.is_object()) refuse(call, "[]", "an object");
    const Json* function = find(call, "function");
    const Json* arguments = function ? find(*function, "arguments") : nullptr;
    if (arguments && arguments->is_string())
      refuse(*arguments, "[].function.arguments", "the JSON text of an object");
  }
}

Json tools_of(const Json& trajectory) {
  const Json* tools = find(trajectory, "tools");
  if (!tools || (says_nothing(tools) && !tools->is_array())) return nullptr;
  Json list = *tools;
  if (const auto from_text = parsed(list, &Json::is_array)) list = *from_text;
  require(list.is_array(), Code::kInvalid, "text: field 'tools' is not a list of JSON schemas");
  for (Json& tool : list.get_array())
    if (const auto from_text = parsed(tool, &Json::is_object)) tool = *from_text;
  return list;
}

JsonObject variables_of(const Json& trajectory) {
  const Json* given = find(trajectory, "chat_template_kwargs");
  if (says_nothing(given)) return {};
  const Json variables = parsed(*given, &Json::is_object).value_or(*given);
  require(variables.is_object(), Code::kInvalid,
          "text: field 'chat_template_kwargs' is not an object of names that the template reads");
  for (const char* name : {"messages", "tools", "add_generation_prompt", "chat_template"})
    require(!find(variables, name), Code::kInvalid, "text: field 'chat_template_kwargs.", name,
            "' is not for a row to say; take it out");
  return without_nulls(variables.get_object());
}

void refuse_media(const Json& trajectory) {
  for (const char* name : {"images", "videos", "audios"}) {
    const Json* media = find(trajectory, name);
    require(!media || !media->is_array() || media->get_array().empty(), Code::kInvalid,
            "text: field '", name, "' is not empty, this template reads text only");
  }
}

// Row indices of the rounds to train; none: all of them.
std::optional<std::vector<size_t>> key_rounds(const Json& trajectory, size_t num_messages) {
  const auto value = user_data_get(trajectory, "key_rounds");
  if (!value || !value->is_array() || value->get_array().empty()) return std::nullopt;
  std::vector<size_t> out;
  for (const Json& round : value->get_array()) {
    require(round.is_int64() && round.get_int64() >= 0 &&
                static_cast<size_t>(round.get_int64()) < num_messages,
            Code::kInvalid, "text: field 'user_data.key_rounds' holds ",
            boost::json::serialize(round), ", the row has messages 0 to ", num_messages - 1);
    out.push_back(static_cast<size_t>(round.get_int64()));
  }
  return out;
}

}  // namespace

JsonArray standard_messages(const Json& messages, const std::string& system) {
  require(messages.is_array() && !messages.get_array().empty(), Code::kInvalid,
          "text: field 'messages' is ", boost::json::serialize(messages).substr(0, 80),
          ", it must be a list that is not empty");
  JsonArray out;
  for (const Json& given : messages.get_array()) {
    out.push_back(
        message_of(given, out.size(), {.reads_reasoning = true, .names_reasoning = false}));
    require_calls(out.back().get_object(), out.size() - 1);
  }
  if (!system.empty() && out[0].at("role") == "user")
    out.insert(out.begin(), Json{{"role", "system"}, {"content", system}});
  return out;
}

std::string plain_text(const Json& content, size_t message_index) {
  if (content.is_string()) return std::string(content.get_string());
  require(content.is_array(), Code::kInvalid, "text: field 'messages[", message_index,
          "].content' is neither a string nor a list of parts");
  std::string out;
  for (const Json& part : content.get_array()) {
    const Json* text = part.is_string() ? &part : find(part, "text");
    const Json* type = find(part, "type");
    require(text && text->is_string() && (!type || *type == "text"), Code::kInvalid,
            "text: field 'messages[", message_index, "].content' has a part ",
            boost::json::serialize(part).substr(0, 80), ", this template reads text only");
    out += text->get_string();
  }
  return out;
}

std::optional<Json> user_data_get(const Json& trajectory, std::string_view key) {
  const Json* data = find(trajectory, "user_data");
  if (!data) return std::nullopt;
  const Json* value = find(*data, key);
  if (data->is_array())
    for (const Json& pair : data->get_array())
      if (pair.is_array() && pair.get_array().size() == 2 && pair.get_array()[0].is_string() &&
          pair.get_array()[0].get_string() == key) {
        value = &pair.get_array()[1];
        break;
      }
  if (!value) return std::nullopt;
  if (!value->is_string()) return *value;
  return json_in(value->get_string()).value_or(*value);
}

std::string usual_role(std::string_view role) {
  static constexpr std::array<std::array<std::string_view, 2>, 7> kRoles = {
      {{"human", "user"},
       {"user", "user"},
       {"gpt", "assistant"},
       {"model", "assistant"},
       {"bot", "assistant"},
       {"assistant", "assistant"},
       {"system", "system"}}};
  for (const auto& [name, usual] : kRoles)
    if (boost::algorithm::iequals(role, name)) return std::string(usual);
  return std::string(role);
}

std::optional<size_t> other_role(const Json& trajectory) {
  const JsonArray& messages = trajectory.at("messages").as_array();
  for (size_t i = 0; i < messages.size(); ++i)
    if (const std::string_view role = messages[i].at("role").as_string(); usual_role(role) != role)
      return i;
  return std::nullopt;
}

void refuse_weights_of_others(const Json& trajectory) {
  const JsonArray& messages = trajectory.at("messages").as_array();
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].at("role") == "assistant") continue;
    for (const std::string_view name : kWeights) {
      const Json* value = find(messages[i], name);
      if (says_nothing(value) || truth(*value) == false) continue;
      // A weight of 1 is what every message has in some data sets; it does not ask for training.
      require(name.ends_with("weight") && truth(*value) == true, Code::kInvalid,
              "text: field 'messages[", i, "].", name, "' is ", boost::json::serialize(*value),
              ", but only the assistant's messages are trained; make it 0, or take it out");
    }
  }
}

Prepared prepare(const Json& trajectory, const MessageOptions& options) {
  const Json* given = find(trajectory, "messages");
  if (!given) {
    std::vector<std::string> fields;
    if (trajectory.is_object())
      for (const auto& field : trajectory.get_object())
        if (field.key() != "messages") fields.emplace_back(field.key());
    fail(Code::kInvalid, "text: field 'messages' is missing", in_place_of_messages(fields));
  }
  require(given->is_array(), Code::kInvalid, "text: field 'messages' is not a list");
  const JsonArray& rows = given->get_array();
  require(!rows.empty(), Code::kInvalid,
          "text: field 'messages' is empty, it must hold at least one message");
  refuse_media(trajectory);
  refuse_columns(trajectory, rows);
  Prepared out;
  JsonArray messages;
  for (size_t i = 0; i < rows.size(); ++i) messages.push_back(message_of(rows[i], i, options));
  std::string system = system_column(trajectory, rows);
  if (system.empty() && messages[0].at("role") == "user") system = options.default_system;
  const bool add_system = !system.empty();
  if (add_system) messages.insert(messages.begin(), Json{{"role", "system"}, {"content", system}});
  out.num_added = add_system ? 1 : 0;
  const auto rounds = key_rounds(trajectory, rows.size());
  out.is_limited = rounds.has_value();
  for (size_t i = out.num_added; i < messages.size(); ++i) {
    const size_t in_row = i - out.num_added;
    if (messages[i].at("role") != "assistant") continue;
    const bool wanted = is_wanted(messages[i].get_object(), in_row);
    out.is_limited |= !wanted;
    if (!wanted) continue;
    if (!rounds || std::find(rounds->begin(), rounds->end(), in_row) != rounds->end())
      out.trained.push_back(i);
  }
  out.messages = std::move(messages);
  out.tools = tools_of(trajectory);
  out.variables = variables_of(trajectory);
  return out;
}

}  // namespace twinkle::text
