#include "twinkle/data/preprocessors/preprocessor.h"

#include "twinkle/text/columns.h"

namespace twinkle::data {

#define PREPROCESSOR(name) PreprocessorKind name();  // defined in <name>.cpp
#include "twinkle/data/preprocessors/preprocessors.def"
#undef PREPROCESSOR

std::vector<PreprocessorKind> preprocessor_kinds() {
  return {
#define PREPROCESSOR(name) name(),
#include "twinkle/data/preprocessors/preprocessors.def"
#undef PREPROCESSOR
  };
}

namespace {

bool same_type(const Json& value, const Json& fallback) {
  if (fallback.is_null()) return value.is_null() || value.is_string();
  return value.kind() == fallback.kind();
}

template <class Items, class Name>
std::string listed(const Items& items, const Name& name) {
  std::string out;
  for (const auto& item : items) out += (out.empty() ? "" : ", ") + std::string(name(item));
  return out.empty() ? "none" : out;
}

}  // namespace

Preprocessor make_preprocessor(std::string_view name, const JsonObject& arguments) {
  const auto kinds = preprocessor_kinds();
  for (const PreprocessorKind& kind : kinds) {
    if (kind.name != name) continue;
    JsonObject all = kind.defaults;
    for (const auto& [key, value] : arguments) {
      const Json* fallback = all.if_contains(key);
      require(fallback, Code::kInvalid, "data: ", name, " has no argument '", std::string_view(key),
              "'; it has ", listed(kind.defaults, [](const auto& field) { return field.key(); }));
      require(same_type(value, *fallback), Code::kInvalid, "data: ", name, " argument '",
              std::string_view(key), "' is ", boost::json::serialize(value), ", expected ",
              fallback->is_bool() ? "true or false" : "a string");
      all[key] = value;
    }
    return kind.make(all);
  }
  fail(Code::kNotFound, "data: there is no preprocessor '", name, "'; there are ",
       listed(kinds, [](const PreprocessorKind& kind) { return kind.name; }));
}

std::string text_field(const Row& row, std::string_view field) {
  const Json* value = row.if_contains(field);
  require(value, Code::kInvalid, "data: field '", field, "' is missing; the row has ",
          listed(row, [](const auto& item) { return item.key(); }));
  require(!value->is_null(), Code::kInvalid, "data: field '", field,
          "' is null; give it a value, or leave the row out");
  require(value->is_string(), Code::kInvalid, "data: field '", field, "' is ",
          boost::json::serialize(*value).substr(0, 80), ", expected a string",
          value->is_number() || value->is_bool() ? "; in a CSV file, quote its cells" : "");
  return std::string(value->get_string());
}

std::string text_field_or_empty(const Row& row, std::string_view field) {
  const Json* value = row.if_contains(field);
  return value && !value->is_null() ? text_field(row, field) : "";
}

JsonObject message(std::string_view role, std::string_view content) {
  return {{"role", role}, {"content", content}};
}

void leave_untrained(JsonArray& messages) {
  for (Json& message : messages)
    if (const Json* role = find(message, "role"); role && *role == "assistant")
      message.as_object().emplace("weight", 0);
}

JsonArray with_earlier_messages(const Row& row, JsonArray own, const Json& system) {
  Json columns(JsonObject{});
  for (const char* name : {"system", "system_prompt", "history"})
    if (const Json* column = row.if_contains(name)) columns.get_object()[name] = *column;
  const std::string column = text::system_column(columns, own);
  if (!text::begins_with_system(own)) {
    const JsonArray first = system_messages(column.empty() ? system : Json(column));
    own.insert(own.begin(), first.begin(), first.end());
  }
  const JsonArray turns = text::history_messages(columns);
  own.insert(own.begin() + (text::begins_with_system(own) ? 1 : 0), turns.begin(), turns.end());
  return own;
}

JsonArray system_messages(const Json& system) {
  if (system.is_null()) return {};
  return {message("system", std::string_view(system.as_string()))};
}

}  // namespace twinkle::data
