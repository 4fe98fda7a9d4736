// Requests to handlers, by routes.def; what a handler throws becomes a status here and nowhere
// else.
#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "twinkle/base/json.h"
#include "twinkle/server/auth/access.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/owners.h"
#include "twinkle/server/service/services.h"

namespace twinkle::server {

struct Call {
  const Request& request;
  std::map<std::string, std::string> path;  // the parameters of the path
  Json body;                                // of a JSON request, else null
  std::string owner;
  // Of a journalled route: 32 hexadecimal digits, the same in a replay; and of its record, or 0
  // where nothing is kept.
  std::string chance;
  uint64_t sequence;
  Services& services;
  Reply reply;  // for a handler that returns nothing and answers later
  Touched touched = {};

  // What the request names. Error kInvalid: it names none.
  Session& session() const;
  Run& run() const;
  Sampler& sampler() const;
};

enum class Kind { kAnswered, kJournalled };

struct Route {
  std::string_view verb, path;
  std::optional<Response> (*run)(Call&);
  Kind kind;
  unsigned touches;  // of Touches
  Scope scope;
};
std::span<const Route> routes();

// Answers a request, perhaps later: one that is journalled when it is written down. On the
// service's thread.
void route(Request request, Services& services, Reply reply);

// Does what a journalled request did; false: there is no room for it yet.
bool replay(uint64_t sequence, const Command& command, Services& services);

Response json(const Json& body);

}  // namespace twinkle::server
