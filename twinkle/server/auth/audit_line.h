// What the audit log says of a request that changes something: who asked, for what.
#pragma once
#include <cstddef>
#include <string_view>

#include "twinkle/base/json.h"
#include "twinkle/server/auth/access.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/replay/brief.h"

namespace twinkle::server {

// `body`: the request's, as JSON.
inline JsonObject audit_line(const Request& request, const Json& body, const Caller& caller) {
  constexpr size_t kMostBytes = 255;  // of a text
  const std::string_view path = request.path;
  JsonObject line{{"action", path.substr(path.rfind('/') + 1)},
                  {"tenant", caller.owner},
                  {"key", caller.key_id},
                  {"peer", request.peer}};
  for (const char* name :
       {"session_id", "model_seq_id", "model_id", "seq_id", "base_model", "path", "model_path"}) {
    const Json* value = find(body, name);
    if (value && value->is_string())
      line[name] = beginning(value->get_string(), kMostBytes);
    else if (value && value->is_int64())
      line[name] = *value;
  }
  return line;
}

}  // namespace twinkle::server
