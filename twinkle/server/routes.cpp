#include "twinkle/server/routes.h"

#include <array>
#include <string_view>
#include <utility>
#include <variant>

#include "twinkle/base/error.h"
#include "twinkle/base/fault/fault.h"
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

bool matches(std::string_view pattern, std::string_view path,
             std::map<std::string, std::string>& parameters) {
  while (!pattern.empty() && !path.empty()) {
    const size_t end = pattern.find('/', 1), path_end = path.find('/', 1);
    const std::string_view want = pattern.substr(1, end - 1), has = path.substr(1, path_end - 1);
    if (want == "{path...}") {
      parameters["path"] = path.substr(1);
      return true;
    }
    if (want.starts_with('{'))
      parameters[std::string(want.substr(1, want.size() - 2))] = has;
    else if (want != has)
      return false;
    pattern = end == std::string_view::npos ? "" : pattern.substr(end);
    path = path_end == std::string_view::npos ? "" : path.substr(path_end);
  }
  return pattern.empty() && path.empty();
}

// 422 is what the SDK shows its user at once; 400, 409 and 5xx make it try again.
int status_of(Code code) {
  switch (code) {
    case Code::kNotFound:
      return 404;
    case Code::kBusy:
      return 503;
    case Code::kInternal:
      return 500;
    default:
      return 422;
  }
}

Response response_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    Response out = refusal(status_of(e.code), e.what());
    if (e.code == Code::kBusy) out.headers.emplace_back("Retry-After", "1");
    return out;
  } catch (const std::exception&) {
    return refusal(500, "internal error");
  }
}

// A request and its route, until it is answered.
struct Asked {
  Request request;
  const Route* route = nullptr;
  std::map<std::string, std::string> path;
  Json body;
};

// Without its body. Error kNotFound: no such route.
std::shared_ptr<Asked> asked(Request request) {
  const auto out = std::make_shared<Asked>();
  out->request = std::move(request);
  const Request& r = out->request;
  for (const Route& route : kRoutes)
    if (route.verb == r.method && matches(route.path, r.path, out->path)) out->route = &route;
  require(out->route, Code::kNotFound, "server: there is no ", r.method, " ", r.path);
  return out;
}

// Error kInvalid: a body that is no object of JSON.
void read_body(Asked& asked) {
  const Request& r = asked.request;
  const bool is_json = r.header("content-type").find("protobuf") == std::string::npos;
  if (r.method != "POST" || !is_json || r.body.empty()) return;
  asked.body = parse_json(r.body, "server: the body");
  require(asked.body.is_object(), Code::kInvalid, "server: the body must be an object of JSON");
}

// As the SDK sends it, or as Prometheus does.
std::string key_of(const Request& request) {
  const std::string bearer = request.header("authorization");
  const bool is_bearer = bearer.starts_with("Bearer ") && request.header("x-api-key").empty();
  return is_bearer ? bearer.substr(7) : request.header("x-api-key");
}

// At most so many bytes of it, and whole characters of UTF-8.
std::string_view beginning(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xc0) == 0x80) --most;
  return text.substr(0, most);
}

void write_audit(const Asked& asked, const Caller& caller, const Services& services) {
  constexpr size_t kMostBytes = 255;  // of a text
  const std::string_view path = asked.route->path;
  JsonObject line{{"action", path.substr(path.rfind('/') + 1)},
                  {"tenant", caller.owner},
                  {"key", caller.key_id},
                  {"peer", asked.request.peer}};
  for (const char* name :
       {"session_id", "model_seq_id", "model_id", "seq_id", "base_model", "path", "model_path"}) {
    const Json* value = find(asked.body, name);
    if (value && value->is_string())
      line[name] = beginning(value->get_string(), kMostBytes);
    else if (value && value->is_int64())
      line[name] = *value;
  }
  store::append_audit(services.state, line);
}

// Who asks, or its refusal, before anything of the request is read or written down.
std::variant<Caller, Response> enter(const Asked& asked, Services& services) {
  auto out = services.access.enter(key_of(asked.request), asked.route->scope,
                                   services.promises.num_ever());
  const auto* caller = std::get_if<Caller>(&out);
  if (caller && caller->revoked_at && asked.route->touches != kPromise) return revoked(*caller);
  return out;
}

// What is journalled of a request besides itself.
struct Written {
  std::string chance = {};
  uint64_t sequence = 0;
};

std::optional<Response> run(const Asked& asked, const Caller& caller, const Written& written,
                            Services& services, const Reply& reply) {
  try {
    Call call{asked.request,  asked.path,       asked.body, caller.owner,
              written.chance, written.sequence, services,   reply};
    if (auto refused = touch(call, asked.route->touches, caller)) return refused;
    return asked.route->run(call);
  } catch (...) {
    return response_of(std::current_exception());
  }
}

template <class T>
T& named(T* found, const char* field) {
  require(found, Code::kInvalid, "server: ", field, " is missing");
  return *found;
}

bool is_later(const Response& response) { return response.status == 429 || response.status == 503; }

}  // namespace

std::span<const Route> routes() { return kRoutes; }

Session& Call::session() const { return named(touched.session, "session_id"); }
Run& Call::run() const { return named(touched.run, "model_id"); }
Sampler& Call::sampler() const { return named(touched.sampler, "sampling_session_id"); }

Response json(const Json& body) { return {.body = boost::json::serialize(body)}; }

void route(Request request, Services& services, Reply answer) {
  const auto pattern = std::make_shared<std::string>("none");
  const Reply reply = [&services, pattern, answer = std::move(answer)](Response response) {
    services.metrics.count(*pattern, response.status);
    answer(std::move(response));
  };
  try {
    const std::shared_ptr<Asked> a = asked(std::move(request));
    *pattern = a->route->path;
    const auto entered = enter(*a, services);
    if (const auto* refused = std::get_if<Response>(&entered)) return reply(*refused);
    const Caller caller = std::get<Caller>(entered);
    read_body(*a);
    if (a->route->touches & kAudited) write_audit(*a, caller, services);
    if (a->route->kind == Kind::kAnswered) {
      if (auto response = run(*a, caller, {}, services, reply)) reply(std::move(*response));
      return;
    }
    const Command command{.method = a->request.method,
                          .path = a->request.path,
                          .content_type = a->request.header("content-type"),
                          .owner = caller.owner,
                          .body = a->request.body,
                          .chance = new_id(),
                          .time_ms = milliseconds_since_1970()};
    services.history.append(command, [a, caller, chance = command.chance, &services, reply](
                                         uint64_t sequence, const std::exception_ptr& error) {
      fault("before apply");
      Response response =
          error ? response_of(error) : *run(*a, caller, {chance, sequence}, services, reply);
      fault("after apply");
      if (!error && is_later(response))
        services.history.append(Dropped{sequence}, [](uint64_t, auto) {});
      reply(std::move(response));
    });
  } catch (...) {
    reply(response_of(std::current_exception()));
  }
}

bool replay(uint64_t sequence, const Command& command, Services& services) {
  Request request;
  request.method = command.method;
  request.path = command.path;
  request.headers["content-type"] = command.content_type;
  request.body = command.body;
  const std::shared_ptr<Asked> a = asked(std::move(request));
  require(a->route->kind == Kind::kJournalled, Code::kInvalid,
          "server: the journal holds a request to ", command.path,
          ", which changes nothing; it is damaged");
  read_body(*a);
  const auto response =
      run(*a, {.owner = command.owner}, {command.chance, sequence}, services, [](Response) {});
  return !is_later(*response);
}

}  // namespace twinkle::server
