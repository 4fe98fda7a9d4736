#include "twinkle/server/http/message.h"

#include "twinkle/base/json.h"

namespace twinkle::server {

std::string readable(std::string text) {
  if (!json_in(boost::json::serialize(Json(text))))
    for (char& c : text)
      if (static_cast<unsigned char>(c) >= 0x80) c = '?';
  return text;
}

// Texts quote what was sent, however long it was and whether or not it was UTF-8.
Response refusal(int status, const std::string& text) {
  constexpr size_t kMost = 4096;
  const std::string detail = text.size() <= kMost ? text : text.substr(0, kMost) + "...";
  return {.status = status,
          .body = boost::json::serialize(JsonObject{{"detail", readable(detail)}})};
}

}  // namespace twinkle::server
