#include "twinkle/server/routes.h"

#include <array>
#include <string_view>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::server {

#define ROUTE(verb, path, name) std::optional<Response> name(Call& call);
#include "twinkle/server/routes.def"
#undef ROUTE

namespace {

struct Route {
  std::string_view verb, path;
  std::optional<Response> (*run)(Call&);
};

constexpr std::array kRoutes = {
#define ROUTE(verb, path, name) Route{#verb, path, name},
#include "twinkle/server/routes.def"
#undef ROUTE
};

bool matches(std::string_view pattern, std::string_view path,
             std::map<std::string, std::string>& parameters) {
  while (!pattern.empty() && !path.empty()) {
    const size_t end = pattern.find('/', 1), path_end = path.find('/', 1);
    const std::string_view want = pattern.substr(1, end - 1), has = path.substr(1, path_end - 1);
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

}  // namespace

Response json(const Json& body) { return {.body = boost::json::serialize(body)}; }

void route(const Request& request, Services& services, const Reply& reply) {
  try {
    for (const Route& r : kRoutes) {
      Call call{request, {}, {}, request.header("x-api-key"), services, reply};
      if (r.verb != request.method || !matches(r.path, request.path, call.path)) continue;
      const bool is_json = request.header("content-type").find("protobuf") == std::string::npos;
      if (r.verb == "POST" && is_json && !request.body.empty()) {
        call.body = parse_json(request.body, "server: the body");
        require(call.body.is_object(), Code::kInvalid,
                "server: the body must be an object of JSON");
      }
      if (auto response = r.run(call)) reply(std::move(*response));
      return;
    }
    reply(refusal(404, "server: there is no " + request.method + " " + request.path));
  } catch (const Error& e) {
    Response out = refusal(status_of(e.code), e.what());
    if (e.code == Code::kBusy) out.headers.emplace_back("Retry-After", "1");
    reply(std::move(out));
  } catch (const std::exception&) {
    reply(refusal(500, "internal error"));
  }
}

}  // namespace twinkle::server
