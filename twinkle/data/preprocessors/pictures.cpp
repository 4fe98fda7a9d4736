#include "twinkle/data/preprocessors/pictures.h"

#include <utility>

#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::data {

JsonArray pictures_of(const Row& row) {
  JsonArray out;
  for (const std::string_view column : kPictureColumns)
    if (const Json* picture = row.if_contains(column); picture && !picture->is_null())
      out.push_back(*picture);
  return out;
}

std::string question_of(const Row& row, std::string_view field) {
  std::string text = text_field(row, field);
  require(!text.empty(), Code::kInvalid, "data: field '", field,
          "' is empty, it must be the text of a question");
  return text;
}

JsonArray prompt_with(const JsonArray& pictures, std::string_view system, const std::string& text) {
  JsonObject user = message("user", text);
  if (!pictures.empty()) {
    JsonArray parts;
    for (const Json& picture : pictures)
      parts.push_back(JsonObject{{"type", "image"}, {"image", picture}});
    parts.push_back(JsonObject{{"type", "text"}, {"text", text}});
    user["content"] = std::move(parts);
  }
  return {message("system", system), std::move(user)};
}

}  // namespace twinkle::data
