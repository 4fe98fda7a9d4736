// Requests to handlers, by routes.def; what a handler throws becomes a status here and nowhere
// else.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "twinkle/base/json.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/service/services.h"

namespace twinkle::server {

struct Call {
  const Request& request;
  std::map<std::string, std::string> path;  // the parameters of the path
  Json body;                                // of a JSON request, else null
  std::string owner;
  Services& services;
  Reply reply;  // for a handler that returns nothing and answers later
};

// Answers a request, perhaps later. On the service's thread.
void route(const Request& request, Services& services, const Reply& reply);

Response json(const Json& body);

}  // namespace twinkle::server
