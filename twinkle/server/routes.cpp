#include "twinkle/server/routes.h"

#include <algorithm>
#include <array>
#include <new>
#include <string_view>
#include <utility>
#include <variant>

#include "twinkle/base/error.h"
#include "twinkle/base/fault/fault.h"
#include "twinkle/server/auth/audit_line.h"
#include "twinkle/server/auth/foreign.h"
#include "twinkle/server/bodies/body_limit.h"
#include "twinkle/server/bodies/num_values.h"
#include "twinkle/server/http/matches.h"
#include "twinkle/server/openai/api.h"
#include "twinkle/server/replay/brief.h"
#include "twinkle/server/tinker/address.h"
#include "twinkle/server/tinker/forward_backward_request.h"
#include "twinkle/store/keys/audit.h"

namespace twinkle::server {

#define ROUTE(verb, path, name, kind, touches, scope) std::optional<Response> name(Call& call);
#include "twinkle/server/routes.def"
#undef ROUTE

namespace {

constexpr std::array kRoutes = {
#define ROUTE(verb, path, name, kind, touches, scope) \
  Route{#verb, path, name, Kind::kind, touches, Scope::scope},
#include "twinkle/server/routes.def"
#undef ROUTE
};

constexpr int64_t kLongBytes = int64_t{64} << 10;  // of a body
// Of JSON, beside a prompt's tokens: each takes memory, and the thread's time.
constexpr int64_t kMostOtherValues = int64_t{64} << 10;

// 422 is what the SDK shows its user at once; 400, 409 and 5xx make it try again.
int status_of(Code code) {
  if (code == Code::kNotFound) return 404;
  if (code == Code::kBusy) return 503;
  return code == Code::kInternal ? 500 : 422;
}

Response response_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    Response out = refusal(status_of(e.code), e.what());
    if (e.code == Code::kBusy) out.headers.emplace_back("Retry-After", "1");
    return out;
  } catch (const std::bad_alloc&) {
    return response_of(std::make_exception_ptr(
        Error(Code::kBusy, "server: there is no memory for the request now; come again")));
  } catch (const std::exception&) {
    return refusal(500, "internal error");
  }
}

// Its folder, which the error names, is the operator's to know.
Response not_journalled(const std::exception_ptr& error) {
  Response out = response_of(error);
  if (out.status != 503 || out.text().find("\"store: ") == std::string::npos) return out;
  return response_of(std::make_exception_ptr(
      Error(Code::kBusy, "server: the disk refuses what is to be journalled; come again")));
}

// A request and its route, until it is answered.
struct Asked {
  Request request;
  const Route* route = nullptr;
  std::map<std::string, std::string> path;
  Json body;
  std::string refused;  // why, as the checkpoint that it samples says, or ""
};

// Error kNotFound: no such route.
const Route& route_of(const std::string& method, const std::string& path,
                      std::map<std::string, std::string>& parameters) {
  for (const Route& route : kRoutes)
    if (route.verb == method && matches(route.path, path, parameters)) return route;
  const bool is_twice = path.find("/api/v1/api/v1/") != std::string::npos;
  fail(Code::kNotFound, "server: there is no ", method, " ", path,
       is_twice ? "; the SDK adds /api/v1 itself: leave it out of base_url" : "");
}

// Without its body. Errors as of route_of.
std::shared_ptr<Asked> asked(Request request) {
  const auto out = std::make_shared<Asked>();
  out->request = std::move(request);
  out->route = &route_of(out->request.method, out->request.path, out->path);
  return out;
}

bool is_protobuf(const Head& head) {
  return head.header("content-type").find("protobuf") != std::string::npos;
}

// Whether a body tells a number of a run.
bool is_numbered(const Route& route) {
  return route.kind == Kind::kJournalled && (route.touches & (kRun | kUsesUp)) != 0;
}

// In which a route takes its body, if it takes one.
tinker::Form form_of(const Route& route) {
  return route.run == forward_backward ? tinker::Form::kProtobuf : tinker::Form::kJson;
}
tinker::Form form_of(const Head& head) {
  return is_protobuf(head) ? tinker::Form::kProtobuf : tinker::Form::kJson;
}
const char* content_type_of(const Route& route) {
  return form_of(route) == tinker::Form::kProtobuf ? "application/x-protobuf" : "application/json";
}

// What it finds in the body is one that the route takes.
std::shared_ptr<Finder> finder_of(const Route& route, const Head& head) {
  return tinker::address_finder(form_of(head), form_of(route));
}

// Before it is read, when it comes: what a journal holds is read as it is. Error kInvalid: it is
// not in the form of its route, or has too many values.
void require_readable(const Asked& asked, const Services& services) {
  const Request& r = asked.request;
  require(r.method != "POST" || form_of(r) == form_of(*asked.route), Code::kInvalid,
          "server: the Content-Type of the body is '", beginning(r.header("content-type"), 80),
          "', ", asked.route->path, " takes ", content_type_of(*asked.route), " alone");
  if (r.method != "POST" || is_protobuf(r) || std::ssize(r.body) <= kLongBytes) return;
  // The SDK's append_int makes a chunk of each token, which is four values.
  const int64_t most = 4 * services.backend.model().max_positions + kMostOtherValues;
  require(num_values(r.body, most) <= most, Code::kInvalid, "server: the body has more than ", most,
          " values of JSON, four for each token that a prompt may have and ", kMostOtherValues,
          " more; send fewer");
}

// Unless it was read. Error kInvalid: a body that is no object of JSON.
void read_body(Asked& asked) {
  const Request& r = asked.request;
  const bool is_json = !is_protobuf(r);
  if (r.method != "POST" || !is_json || r.body.empty() || !asked.body.is_null()) return;
  asked.body = parse_json(r.body, "the body");
  require(asked.body.is_object(), Code::kInvalid, "server: the body must be an object of JSON");
}

// While a request waits for the disk: JSON takes many times its bytes, which alone have their room.
void let_go_of_long(Json& body, const Request& request) {
  if (std::ssize(request.body) > kLongBytes) body = nullptr;
}

BodyLimit limit_of(const Route& route, const Head& head, int64_t max_body_bytes) {
  return body_limit({.is_short = route.scope == Scope::kPublic || route.run == create_session,
                     .is_protobuf = is_protobuf(head),
                     .takes_protobuf = form_of(route) == tinker::Form::kProtobuf},
                    max_body_bytes);
}

// As the SDK sends it, or as Prometheus does.
std::string key_in(const Head& head) {
  const std::string bearer = head.header("authorization");
  const bool is_bearer = bearer.starts_with("Bearer ") && head.header("x-api-key").empty();
  return is_bearer ? bearer.substr(7) : head.header("x-api-key");
}

// Who needs no key for a path could hold its connection for as long as a body may take.
bool has_body(const Head& head) {
  return head.content_length > 0 || !head.header("transfer-encoding").empty();
}

// Who asks, or its refusal, before anything of the request is read or written down.
std::variant<Caller, Response> enter(const Route& route, const Head& head, Services& services) {
  auto out = services.access.enter(key_in(head), route.scope);
  const auto* caller = std::get_if<Caller>(&out);
  if (caller && caller->revoked_at && route.touches != kPromise) return revoked(*caller);
  return out;
}

// Whose request of which number it is.
tinker::Address address_of(const Request& request) {
  if (is_protobuf(request)) return tinker::address_of(request.body);
  const auto finder = tinker::address_finder(tinker::Form::kJson, tinker::Form::kProtobuf);
  finder->read(request.body);
  return tinker::address_of(finder->found());
}

// The caller's run whose number it is, or null.
Run* own_run(const tinker::Address& to, const Caller& caller, Services& services) {
  Run* const run = services.runs.find(to.model_id);
  return run && run->owner == caller.owner ? run : nullptr;
}

void use_up(const Asked& asked, const Caller& caller, const Response& refused, Services& services) {
  if (refused.status != 404 && refused.status != 422) return;
  const tinker::Address to = address_of(asked.request);
  Run* const run = own_run(to, caller, services);
  if (!run) return;
  const Json why = parse_json(refused.body, "server: the refusal");
  services.runs.refuse(*run, to.seq_id, get<std::string>(why, "detail"), false);
}

// `command`, but for its body, and `sequence`, of its record: of a journalled request.
std::optional<Response> run(Asked& asked, const Caller& caller, const Command& command,
                            uint64_t sequence, Services& services, const Reply& reply) {
  const auto told = [&]() -> std::optional<Response> {
    try {
      read_body(asked);
      Call call{asked.request,  asked.path, asked.body, caller.owner,
                command.chance, sequence,   services,   reply};
      call.key_id = command.key_id;
      call.time_ms = command.time_ms;
      call.refused = command.refused;
      if (auto refused = touch(call, asked.route->touches, caller)) return refused;
      return asked.route->run(call);
    } catch (...) {
      return response_of(std::current_exception());
    }
  };
  try {
    std::optional<Response> out = told();
    if (out && (asked.route->touches & kUsesUp)) use_up(asked, caller, *out, services);
    return out;
  } catch (...) {
    return response_of(std::current_exception());
  }
}

// Of a long request: the refusal if it names nothing of the caller's. It takes no room in the
// journal, which changes nothing: it is refused behind it, too.
std::optional<Response> without_owner(const Asked& asked, const Caller& caller,
                                      Services& services) {
  if (std::ssize(asked.request.body) <= kLongBytes) return std::nullopt;
  if ((asked.route->touches & kUsesUp) && own_run(address_of(asked.request), caller, services))
    return std::nullopt;  // its number is used up, whatever else it names
  Call call{asked.request, asked.path, asked.body, caller.owner, "", 0, services, {}};
  auto refused = touch(call, asked.route->touches, caller);
  if (!refused && (asked.route->touches & kRun)) call.run();  // it names one
  return refused;
}

Amount amount_of(unsigned touches) {
  if (touches & kMakesRun) return Amount::kRun;
  if (touches & kMakesAdapter) return Amount::kAdapter;
  return touches & kMakesCheckpoint ? Amount::kCheckpoint : Amount::kNothing;
}

// Answers the journalled request whose turn it was. A refusal that a replay cannot find again is
// written down first.
void tell(const Response& response, uint64_t sequence, Services& services, const Reply& reply) {
  const std::string& refused = services.decisions.refused();
  if (!refused.empty())
    return services.history.append(Refused{sequence, refused},
                                   [response, reply](uint64_t, const std::exception_ptr& error) {
                                     reply(error ? not_journalled(error) : response);
                                   });
  if ((response.status == 429 || response.status == 503) && !services.decisions.has_changed())
    services.history.append(Dropped{sequence}, [](uint64_t, auto) {});
  reply(response);
}

// Writes a request down, does it and answers.
void accept(const std::shared_ptr<Asked>& a, const Caller& caller, Services& services,
            const Reply& reply) {
  try {
    read_body(*a);
    if (auto refused = without_owner(*a, caller, services)) return reply(std::move(*refused));
    const Addition adds = Amounts::addition(services, amount_of(a->route->touches), a->body);
    let_go_of_long(a->body, a->request);
    Command command{.method = a->request.method,
                    .path = a->request.path,
                    .content_type = a->request.header("content-type"),
                    .owner = caller.owner,
                    .chance = new_id(),
                    .time_ms = milliseconds_since_1970(),
                    .key_id = caller.key_id};
    command.refused = a->refused.empty()
                          ? services.amounts.refusal(services, caller.owner, adds.amount)
                          : a->refused;
    const auto pending =
        command.refused.empty() ? services.amounts.pend(caller.owner, adds) : nullptr;
    // The body is lent, not copied: it may be most of what the service has in memory.
    const auto shared = std::make_shared<Command>(std::move(command));
    shared->body = std::move(a->request.body);
    services.history.append(*shared, [a, caller, shared, pending, &services, reply](
                                         uint64_t sequence, const std::exception_ptr& error) {
      a->request.body = std::move(shared->body);
      fault("before apply");
      if (error) return reply(not_journalled(error));
      services.decisions.come();
      const Response response = *run(*a, caller, *shared, sequence, services, reply);
      fault("after apply");
      tell(response, sequence, services, reply);
    });
  } catch (...) {
    reply(response_of(std::current_exception()));
  }
}

// What uses up a number that does not come: a request that is refused, as is any that can be told
// by its number alone. It breaks its window unless it is a `forward`. `why` goes before the time.
PutOff::GiveUp gives_up(Services& services, const tinker::Address& to, const std::string& why) {
  return [&services, to, why](const Run& of) {
    const auto a = std::make_shared<Asked>();
    a->request.method = "POST";
    a->request.path = "/api/v1/forward_backward";
    a->request.headers["content-type"] = "application/x-protobuf";
    a->request.body = tinker::bytes_of(to);
    a->route = &route_of(a->request.method, a->request.path, a->path);
    a->refused =
        "server: it " + why + " for " + std::to_string(PutOff::kGivenUpAfter.count()) + " minutes";
    accept(a, {.owner = of.owner, .key_id = of.key_id}, services, [](const Response&) {});
  };
}

// Of a run's request that is told to come again: if it does not, its number is used up.
void put_off(const Asked& asked, const Caller& caller, Services& services) {
  const tinker::Address to = address_of(asked.request);
  if (!own_run(to, caller, services)) return;
  services.put_off.note(to.model_id, to.seq_id,
                        gives_up(services, to, "was answered 503 and did not come again"));
}

// The SDK polls again at once after any 5xx, and after 429 with pauses that grow.
void pause_polls(std::string_view path, Response& response) {
  if (response.status >= 500 && path == "/api/v1/retrieve_future") response.status = 429;
}

// Reads its body, but that a request whose number can be told is refused with it.
void read_or_refuse(Asked& asked, const Services& services) {
  try {
    require_readable(asked, services);
    read_body(asked);
  } catch (const Error& error) {
    if (!is_numbered(*asked.route)) throw;
    asked.refused = error.what();
    asked.request.refused = response_of(std::current_exception());
    const auto finder = finder_of(*asked.route, asked.request);
    finder->read(asked.request.body);
    asked.request.body = finder->found();
  }
}

// Tells why a body is not taken, when its number is used up: its run would wait for it for ever.
// The command that is written down is what was found of that in it, and why.
void refuse(const std::shared_ptr<Asked>& a, const Caller& caller, Services& services,
            const Reply& reply) {
  const Response why = std::move(*a->request.refused);
  if (a->request.body.empty() || !is_numbered(*a->route)) return reply(why);
  if (a->refused.empty())
    a->refused =
        "server: " + get<std::string>(parse_json(why.body, "server: the refusal"), "detail");
  a->request.headers["content-type"] = content_type_of(*a->route);
  accept(a, caller, services, [why, reply](const Response& response) {
    reply(response.status == 503 ? response : why);  // not written down: it comes again
  });
}

// The tenant of the engine that the request will sample; "": none. Errors and refusals as of
// touch().
std::variant<std::string, Response> sampled(const Asked& asked, const Caller& caller,
                                            Services& services) {
  if (!(asked.route->touches & (kSampler | kModelPath))) return "";
  Call call{asked.request, asked.path, asked.body, caller.owner, "", 0, services, {}};
  if (auto refused = touch(call, asked.route->touches, caller)) return std::move(*refused);
  if (const Sampler* const sampler = call.touched.sampler) return sampler->tenant;
  const Checkpoint* const checkpoint = call.touched.checkpoint;
  return checkpoint ? services.tenant_of(checkpoint->folder, caller.owner) : "";
}

// Has what the request will sample read from the disk, for which its turn does not wait; then
// accepts it.
void prepare(const std::shared_ptr<Asked>& a, const Caller& caller, Services& services,
             const Reply& reply) {
  try {
    read_body(*a);
    const auto tenant = sampled(*a, caller, services);
    if (const auto* refused = std::get_if<Response>(&tenant)) return reply(*refused);
    services.prepare(std::get<std::string>(tenant), caller.owner,
                     [a, caller, &services, reply](const std::string& refused) {
                       a->refused = refused;
                       accept(a, caller, services, reply);
                     });
    let_go_of_long(a->body, a->request);  // it may wait
  } catch (...) {
    reply(response_of(std::current_exception()));
  }
}

}  // namespace

std::span<const Route> routes() { return kRoutes; }

std::optional<Response> answer_from_disk(const Call& call, std::function<Response()> make) {
  const auto made = std::make_shared<Response>();
  call.services.disk.run([made, make = std::move(make)] { *made = make(); }, call.services.loop,
                         [made, reply = call.reply](const std::exception_ptr& error) {
                           reply(error ? response_of(error) : std::move(*made));
                         });
  return std::nullopt;
}

void put_off_missing(Services& services) {
  for (const auto& [id, run] : services.runs.all()) {
    if (run.waiting.empty()) continue;
    for (int64_t n = run.first_missing; n < run.waiting.rbegin()->first; ++n)
      services.put_off.note(id, n,
                            gives_up(services, {.model_id = id, .seq_id = static_cast<int32_t>(n)},
                                     "did not come, after a start of the server,"));
  }
}

void admit(const Head& head, const std::string& path, Services& services, BodyRoom& room,
           const Admit& admit) {
  std::string_view pattern = "none";
  const auto refuse = [&](Response response) {
    pause_polls(pattern, response);
    if (openai::speaks(path)) response = openai::in_form(std::move(response));
    services.metrics.count(std::string(pattern), response.status, head.came);
    const Caller who = services.access.whose(key_in(head));
    admit({.max_body_bytes = -1,
           .refused = std::move(response),
           .tenant = who.owner,
           .key_id = who.key_id});
  };
  try {
    std::map<std::string, std::string> parameters;
    const Route& route = route_of(head.method, path, parameters);
    pattern = route.path;
    if (services.access.is_open())
      if (const std::string why = foreign(head); !why.empty()) return refuse(refusal(403, why));
    require(route.verb == "POST" || !has_body(head), Code::kInvalid, "server: ", route.verb, " ",
            route.path, " takes no body; leave it out");
    auto entered = enter(route, head, services);
    if (auto* refused = std::get_if<Response>(&entered)) return refuse(std::move(*refused));
    const auto& caller = std::get<Caller>(entered);
    Admission admission = room.admit(head, caller.owner);
    if (admission.max_body_bytes < 0) return refuse(std::move(admission.refused));
    if (is_numbered(route)) {
      admission.finder = finder_of(route, head);
      admission.most_searched_bytes = admission.max_body_bytes;
    }
    BodyLimit limit = limit_of(route, head, admission.max_body_bytes);
    admission.max_body_bytes = limit.bytes;
    admission.why_most = std::move(limit.why);
    admission.tenant = caller.owner;
    admission.key_id = caller.key_id;
    admit(std::move(admission));
  } catch (...) {
    refuse(response_of(std::current_exception()));
  }
}

void route(Request request, Services& services, Reply answer) {
  const auto pattern = std::make_shared<std::string>("none");
  const bool is_openai = openai::speaks(request.path);
  Reply reply = [&services, pattern, is_openai, came = request.came,
                 answer = std::move(answer)](Response response) {
    pause_polls(*pattern, response);
    if (is_openai) response = openai::in_form(std::move(response));
    services.metrics.count(*pattern, response.status, came);
    answer(std::move(response));
  };
  try {
    const std::shared_ptr<Asked> a = asked(std::move(request));
    *pattern = a->route->path;
    const auto entered = enter(*a->route, a->request, services);
    if (const auto* refused = std::get_if<Response>(&entered)) return reply(*refused);
    const Caller caller = std::get<Caller>(entered);
    if (is_numbered(*a->route))
      reply = [a, caller, &services, told = reply](Response response) {
        if (response.status == 503) put_off(*a, caller, services);
        told(std::move(response));
      };
    if (!a->request.refused) read_or_refuse(*a, services);
    if (a->request.refused) return refuse(a, caller, services, reply);
    if (a->route->kind == Kind::kAnswered) {
      const Command of{.key_id = caller.key_id};
      if (auto response = run(*a, caller, of, 0, services, reply)) reply(std::move(*response));
      return;
    }
    if (!(a->route->touches & kAudited)) return prepare(a, caller, services, reply);
    const JsonObject line = audit_line(a->request, a->body, caller);
    let_go_of_long(a->body, a->request);
    services.disk.run(
        [line, &services] { store::append_audit(services.state, line); }, services.loop,
        [a, caller, &services, reply](const std::exception_ptr& error) {
          try {
            if (error) std::rethrow_exception(error);
            services.amounts.measure(
                services, caller.owner, amount_of(a->route->touches),
                [a, caller, &services, reply] { prepare(a, caller, services, reply); });
          } catch (...) {
            reply(response_of(std::current_exception()));
          }
        });
  } catch (...) {
    reply(response_of(std::current_exception()));
  }
}

void replay(uint64_t sequence, const Command& command, Services& services) {
  Request request;
  request.method = command.method, request.path = command.path;
  request.headers["content-type"] = command.content_type;
  request.body = command.body;
  const std::shared_ptr<Asked> a = asked(std::move(request));
  require(a->route->kind == Kind::kJournalled, Code::kInvalid,
          "server: the journal holds a request to ", command.path,
          ", which changes nothing; it is damaged");
  read_body(*a);
  const auto told = run(*a, {.owner = command.owner}, command, sequence, services, [](Response) {});
  if (told && told->status == 503) fail(Code::kBusy, told->text());  // nobody sends it again
}

}  // namespace twinkle::server
