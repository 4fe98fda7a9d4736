// What a request that makes a run says of its optimizer.
#pragma once
#include <string>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"

namespace twinkle::server {

// Error kInvalid: optimizer_config is of another type than adamw.
inline void require_adamw(const Json& body) {
  const Json* config = find(body, "optimizer_config");
  const auto type = config ? get<std::string>(*config, "type") : "adamw";
  require(type == "adamw", Code::kInvalid, "server: optimizer_config.type is '", type,
          "', it must be adamw, the optimizer here");
}

}  // namespace twinkle::server
