#include "twinkle/serving/api/router.h"

#include <new>
#include <string_view>
#include <variant>

#include "twinkle/base/error.h"
#include "twinkle/server/auth/audit_line.h"
#include "twinkle/server/auth/foreign.h"
#include "twinkle/server/bodies/body_limit.h"
#include "twinkle/server/bodies/num_values.h"
#include "twinkle/server/http/matches.h"
#include "twinkle/store/keys/audit.h"

namespace twinkle::server::api {
namespace {

constexpr int64_t kLongBytes = int64_t{64} << 10;  // a body's
// Values of JSON beside a prompt's tokens: each takes memory, and the thread's time.
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

bool is_protobuf(const Head& head) {
  return head.header("content-type").find("protobuf") != std::string::npos;
}

const char* content_type_of(Form form) {
  return form == Form::kProtobuf ? "application/x-protobuf" : "application/json";
}

// As the SDK sends it, or as Prometheus and OpenAI's clients do.
std::string key_in(const Head& head) {
  const std::string bearer = head.header("authorization");
  const bool is_bearer = bearer.starts_with("Bearer ") && head.header("x-api-key").empty();
  return is_bearer ? bearer.substr(7) : head.header("x-api-key");
}

// Who needs no key for a path could hold its connection for as long as a body may take.
bool has_body(const Head& head) {
  return head.content_length > 0 || !head.header("transfer-encoding").empty();
}

// The SDK polls again at once after any 5xx, and after 429 with pauses that grow.
void pause_polls(std::string_view path, Response& response) {
  if (response.status >= 500 && path == "/api/v1/retrieve_future") response.status = 429;
}

}  // namespace

void Router::ask_for_keys(Access access) {
  service_.access = std::move(access);
  core_.quota = [this](const std::string& owner, const std::string& key_id) {
    return service_.access.quota(owner, key_id);
  };
  service_.access.watch({core_.loop(), keys_disk_},
                        [this] { return core_.domain().num_futures(); });
}

const Route& Router::route_of(const std::string& method, const std::string& path,
                              std::map<std::string, std::string>& parameters) const {
  for (const std::span<const Route> routes : routes_)
    for (const Route& route : routes)
      if (route.verb == method && matches(route.path, path, parameters)) return route;
  const bool is_twice = path.find("/api/v1/api/v1/") != std::string::npos;
  fail(Code::kNotFound, "server: there is no ", method, " ", path,
       is_twice ? "; the SDK adds /api/v1 itself: leave it out of base_url" : "");
}

// Who asks, or its refusal, before anything of the request is read.
std::variant<Caller, Response> Router::enter(const Route& route, const Head& head) const {
  auto out = service_.access.enter(key_in(head), route.scope);
  const auto* caller = std::get_if<Caller>(&out);
  if (caller && caller->revoked_at && route.path != "/api/v1/retrieve_future")
    return revoked(*caller);
  return out;
}

// Error kInvalid: it is not in the form of its route, or no object of JSON, or has too many values.
void Router::read_body(Call& call) const {
  const Request& r = call.request;
  const Form form = call.route->form;
  if (r.method != "POST" && r.method != "PUT") return;
  require(form == Form::kNone || is_protobuf(r) == (form == Form::kProtobuf), Code::kInvalid,
          "server: the Content-Type of the body is '", beginning(r.header("content-type"), 80),
          "', ", call.route->path, " takes ", content_type_of(form), " alone");
  if (form == Form::kNone || form == Form::kProtobuf || r.body.empty()) return;
  // The SDK's append_int makes a chunk of each token, which is four values.
  const int64_t most = 4 * core_.backend().model().max_positions + kMostOtherValues;
  require(std::ssize(r.body) <= kLongBytes || num_values(r.body, most) <= most, Code::kInvalid,
          "server: the body has more than ", most,
          " values of JSON, four for each token that a prompt may have and ", kMostOtherValues,
          " more; send fewer");
  call.body = parse_json(r.body, "the body");
  require(call.body.is_object(), Code::kInvalid, "server: the body must be an object of JSON");
}

Task<Response> Router::answer(Call& call) {
  const auto entered = enter(*call.route, call.request);
  if (const auto* refused = std::get_if<Response>(&entered)) co_return *refused;
  call.caller = std::get<Caller>(entered);
  std::optional<Response> refused = call.request.refused;
  std::string why;
  if (refused) {
    why = "server: " + get<std::string>(parse_json(refused->body, "the refusal"), "detail");
  } else {
    try {
      read_body(call);
    } catch (const Error& e) {
      refused = response_of(std::current_exception());
      why = e.what();
    }
  }
  const Numbers* const numbers = call.route->numbers;
  if (refused) {
    if (numbers) co_await numbers->fail(call, std::move(why));
    co_return std::move(*refused);
  }
  if (call.route->is_audited) {
    JsonObject line = audit_line(call.request, call.body, call.caller);
    if (!call.path.empty())
      line["action"] = call.request.method + " " + std::string(beginning(call.request.path, 512));
    const auto write = [this, line] { store::append_audit(core_.state(), line); };
    co_await core::on(core_.disk(), core_.loop(), write);
  }
  try {
    co_return co_await call.route->run(call);
  } catch (const Error& e) {
    if (!numbers || e.code == Code::kBusy || e.code == Code::kInternal) throw;
    refused = response_of(std::current_exception());
    why = e.what();
  }
  std::optional<Response> ack = co_await numbers->fail(call, std::move(why));
  co_return ack ? std::move(*ack) : std::move(*refused);
}

Task<> Router::serve(std::shared_ptr<Call> call, Reply reply, Later<bool> begun) {
  co_await begun;
  Response response;
  try {
    response = co_await answer(*call);
  } catch (...) {
    response = response_of(std::current_exception());
  }
  if (call->caller.revoked_at && response.status == 404) response = revoked(call->caller);
  pause_polls(call->route->path, response);
  if (call->route->in_form) response = call->route->in_form(std::move(response));
  try {
    ++service_.requests[{std::string(call->route->path), response.status}];
  } catch (const std::bad_alloc&) {
    // It is not counted.
  }
  reply(std::move(response));
}

void Router::route(Request request, Reply reply) {
  std::map<std::string, std::string> parameters;
  const Route* found = nullptr;
  try {
    found = &route_of(request.method, request.path, parameters);
  } catch (...) {
    ++service_.requests[{"none", 404}];
    return reply(response_of(std::current_exception()));
  }
  const auto call = std::make_shared<Call>(Call{.request = std::move(request),
                                                .route = found,
                                                .path = std::move(parameters),
                                                .body = {},
                                                .caller = {},
                                                .core = core_,
                                                .service = service_});
  const Later<bool> begun;
  core_.tasks().start(serve(call, std::move(reply), begun));
  begun.set(true);  // nothing is done before there is memory for all of the task
}

void Router::admit(const Head& head, const std::string& path, const Admit& admit) {
  std::string pattern = "none";
  const Route* found = nullptr;
  const auto refuse = [&](Response response) {
    pause_polls(pattern, response);
    if (found && found->in_form) response = found->in_form(std::move(response));
    ++service_.requests[{pattern, response.status}];
    const Caller who = service_.access.whose(key_in(head));
    Admission refused{.max_body_bytes = -1, .refused = std::move(response)};
    refused.tenant = who.owner;
    refused.key_id = who.key_id;
    admit(std::move(refused));
  };
  try {
    std::map<std::string, std::string> parameters;
    const Route& route = route_of(head.method, path, parameters);
    found = &route;
    pattern = route.path;
    if (service_.access.is_open())
      if (const std::string why = foreign(head); !why.empty()) return refuse(refusal(403, why));
    require(route.verb == "POST" || route.verb == "PUT" || !has_body(head), Code::kInvalid,
            "server: ", route.verb, " ", route.path, " takes no body; leave it out");
    auto entered = enter(route, head);
    if (auto* refused = std::get_if<Response>(&entered)) return refuse(std::move(*refused));
    const auto& caller = std::get<Caller>(entered);
    Admission admission = room_.admit(head, caller.owner);
    if (admission.max_body_bytes < 0) return refuse(std::move(admission.refused));
    if (route.numbers) {
      admission.finder = route.numbers->finder(is_protobuf(head));
      admission.most_searched_bytes = admission.max_body_bytes;
    }
    const bool is_short = route.scope == Scope::kPublic || route.form == Form::kShort;
    BodyLimit limit = body_limit({.is_short = is_short,
                                  .is_protobuf = is_protobuf(head),
                                  .takes_protobuf = route.form == Form::kProtobuf},
                                 admission.max_body_bytes);
    admission.max_body_bytes = limit.bytes;
    admission.why_most = std::move(limit.why);
    admission.tenant = caller.owner;
    admission.key_id = caller.key_id;
    admit(std::move(admission));
  } catch (...) {
    refuse(response_of(std::current_exception()));
  }
}

}  // namespace twinkle::server::api
