#include "twinkle/text/columns.h"

#include <algorithm>
#include <boost/algorithm/string/predicate.hpp>

namespace twinkle::text {
namespace {

std::string brief(const Json& value) { return boost::json::serialize(value).substr(0, 80); }

bool is_system(const Json& message) {
  const Json* role = find(message, "role");
  return role && (*role == "system" || *role == "developer");
}

bool begin_with(const JsonArray& messages, const JsonArray& turns) {
  const size_t first = begins_with_system(messages) ? 1 : 0;
  if (messages.size() < first + turns.size()) return false;
  for (size_t i = 0; i < turns.size(); ++i)
    for (const char* key : {"role", "content"}) {
      const Json* value = find(messages[first + i], key);
      if (value == nullptr || *value != turns[i].at(key)) return false;
    }
  return true;
}

// The number or boolean that a text holds; another value as it is.
Json meant_by(const Json& value) {
  if (!value.is_string()) return value;
  const std::string_view text = value.get_string();
  return json_in(text).value_or(value);
}

}  // namespace

bool says_nothing(const Json* value) {
  return value == nullptr || value->is_null() ||
         (value->is_string() && value->get_string().empty()) ||
         (value->is_array() && value->get_array().empty()) ||
         (value->is_object() && value->get_object().empty());
}

bool begins_with_system(const JsonArray& messages) {
  return !messages.empty() && is_system(messages[0]);
}

std::string system_column(const Json& row, const JsonArray& messages) {
  const Json* given = nullptr;
  for (const char* name : {"system", "system_prompt"}) {
    const Json* column = find(row, name);
    if (says_nothing(column)) continue;
    require(column->is_string(), Code::kInvalid, "text: field '", name, "' is ", brief(*column),
            ", expected a string");
    const Json* first = begins_with_system(messages) ? find(messages[0], "content") : given;
    const bool is_alone = !given && !begins_with_system(messages);
    require(is_alone || (first && *first == *column), Code::kInvalid, "text: field '", name,
            "' is ", brief(*column),
            given ? ", and field 'system' is another, "
                  : ", and messages begin with another system message, ",
            first ? brief(*first) : "null", "; leave one of the two out");
    given = column;
  }
  return given && !begins_with_system(messages) ? std::string(given->get_string()) : "";
}

JsonArray history_messages(const Json& row) {
  const Json* column = find(row, "history");
  if (says_nothing(column)) return {};
  JsonArray out;
  const bool is_list = column->is_array();
  for (const Json& turn : is_list ? column->get_array() : JsonArray{nullptr}) {
    const bool is_pair = turn.is_array() && turn.get_array().size() == 2 &&
                         turn.get_array()[0].is_string() && turn.get_array()[1].is_string();
    require(is_pair, Code::kInvalid, "text: field 'history' ", is_list ? "holds " : "is ",
            brief(is_list ? turn : *column), ", expected a list of [question, answer]");
    for (const int i : {0, 1})
      out.push_back({{"role", i == 0 ? "user" : "assistant"}, {"content", turn.get_array()[i]}});
  }
  return out;
}

std::optional<bool> truth(const Json& value) {
  const std::string_view text = value.is_string() ? std::string_view(value.get_string()) : "";
  const auto is = [&](const char* digit, const char* word) {
    return text == digit || boost::algorithm::iequals(text, word);
  };
  if (value == false || value == 0 || value == 0.0 || is("0", "false")) return false;
  if (value == true || value == 1 || value == 1.0 || is("1", "true")) return true;
  return std::nullopt;
}

void refuse_columns(const Json& row, const JsonArray& messages) {
  const auto refuse = [&row](const char* name, const char* remedy) {
    const Json* column = find(row, name);
    require(says_nothing(column), Code::kInvalid, "text: field '", name, "' is ",
            column ? brief(*column) : "", ", which is not read; ", remedy);
  };
  refuse("functions",
         "name it tools, a list of {\"type\": \"function\", \"function\": {...}}, or leave it out");
  refuse("function_call",
         "a call belongs to an assistant's message, as tool_calls; put it there, or leave it out");
  if (says_nothing(find(row, "history"))) return;
  require(begin_with(messages, history_messages(row)), Code::kInvalid,
          "text: field 'history' has turns that messages do not begin with; put them there, and "
          "leave the field out");
}

void refuse_weights(const Json& row) {
  for (const std::string_view name : {"weight", "loss", "train"}) {
    const Json* column = find(row, name);
    if (says_nothing(column)) continue;
    const Json value = meant_by(*column);
    bool is_harmless = truth(value) != false;  // tensors and texts of such names say something else
    if (value.is_number()) {
      const double number = value.to_number<double>();
      is_harmless = name == "weight" ? number == 1 : number != 0;
    }
    require(
        is_harmless, Code::kInvalid, "text: field '", name, "' is ", brief(*column),
        ", and every row is learnt alike; leave out the rows that are not to be learnt, or, for "
        "a loss of your own, give the field another name");
  }
}

}  // namespace twinkle::text
