// What handlers ask of a request, and answer.
#include "twinkle/base/error.h"
#include "twinkle/server/routes.h"

namespace twinkle::server {
namespace {

template <class T>
T& named(T* found, const char* field) {
  require(found, Code::kInvalid, "server: ", field, " is missing");
  return *found;
}

}  // namespace

Session& Call::session() const { return named(touched.session, "session_id"); }
Run& Call::run() const { return named(touched.run, "model_id"); }
Session& Call::open_session() const {
  require(!session().finished, Code::kInvalid, "server: the session '", session().id, "'",
          " has finished; make another");
  return session();
}
void Call::require_number(const char* field, int64_t number) const {
  require(number >= 0, Code::kInvalid, "server: ", field, " is ", number,
          ", it must be at least 0");
}
Sampler& Call::sampler() const { return named(touched.sampler, "sampling_session_id"); }

Response json(const Json& body) {
  Response out{.body = boost::json::serialize(body)};
  if (find(body, "request_id")) out.promise = get<std::string>(body, "request_id");
  return out;
}

Json ack(const Run& run, const std::string& request_id) {
  return {{"request_id", request_id}, {"model_id", run.id}};
}

}  // namespace twinkle::server
