// Requests to handlers, by routes.def; what a handler throws becomes a status here and nowhere
// else.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"
#include "twinkle/server/auth/access.h"
#include "twinkle/server/bodies/body_room.h"
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
  std::string key_id = {};
  int64_t time_ms = 0;  // since 1970, when a journalled request came
  // Why what is new is refused, by limits or a checkpoint that cannot be sampled; or empty.
  std::string refused = {};

  // What the request names. Error kInvalid: it names none.
  Session& session() const;
  Run& run() const;
  Sampler& sampler() const;
  // For what is new of it. Error kInvalid: it has finished.
  Session& open_session() const;
  // Error kInvalid: it is refused.
  void require_allowed() const { require(refused.empty(), Code::kInvalid, refused); }
  // Error kInvalid: it is below 0.
  void require_number(const char* field, int64_t number) const;
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

// Decides by a request's head whether it may come in; then `room` decides on its body. 404: no such
// route; 401, 403: no key of this server, or none for this route. `path`: as route() gets it.
void admit(const Head& head, const std::string& path, Services& services, BodyRoom& room,
           const Admit& admit);

// Answers a request, perhaps later: one that is journalled when it is written down. On the
// service's thread.
void route(Request request, Services& services, Reply reply);

// At the end of a start, on the service's thread: numbers that have not come, and for which later
// ones of their run wait, count as told now to come again (tenants/put_off.h). Whether they were,
// a start does not know; a client that is there sends them again.
void put_off_missing(Services& services);

// Does what a journalled request did, as Services::decisions says that it was decided.
void replay(uint64_t sequence, const Command& command, Services& services);

Response json(const Json& body);
// Of a run's request that was accepted.
Json ack(const Run& run, const std::string& request_id);

// Answers a request when the disk's thread has made the response; what that throws becomes a status
// as what a handler throws does. Always nothing, for a handler to return.
std::optional<Response> answer_from_disk(const Call& call, std::function<Response()> make);

}  // namespace twinkle::server
