// Requests to routes of all protocols. What a route throws becomes a status here and nowhere else.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/server/auth/access.h"
#include "twinkle/server/bodies/body_room.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/worker.h"
#include "twinkle/serving/api/call.h"
#include "twinkle/serving/core/core.h"

namespace twinkle::server::openai {
class Api;
}

namespace twinkle::server::api {

// A file of the served model that anybody may read (hub.cpp).
struct HubFile {
  std::string etag;  // the bytes' own
  std::shared_ptr<const std::string> bytes;
};

struct ResultOptions {
  int64_t max_sample_bytes = int64_t{64} << 20;
  int64_t max_training_bytes = int64_t{64} << 20;

  static constexpr auto fields() {
    using O = ResultOptions;
    return std::tuple{
        option("max_sample_bytes", &O::max_sample_bytes, between(1, kMostBytes),
               "bytes that the result of one asample may have at most, as num_samples, max_tokens "
               "and topk_sample_logprobs say before it is sampled; what may have more is refused"),
        option("max_forward_backward_bytes", &O::max_training_bytes, between(1, kMostBytes),
               "bytes that the result of one forward_backward or forward may have at most: 4 for "
               "each target of a token, also where a sparse tensor lists none; what has more is "
               "refused")};
  }
};

// All that routes share besides the core.
struct Service {
  Access access = {};  // who may come in; everybody, unless it is set
  JsonObject client_flags =
      {};  // the answer to client/config; the SDK's defaults where it is empty
  ResultOptions results = {};
  std::shared_ptr<openai::Api> openai = {};       // made with its first request
  std::map<std::string, HubFile> hub_files = {};  // by name; of the disk's thread alone
  std::map<std::pair<std::string, int>, int64_t> requests = {};  // by route and status
};

class Router {
 public:
  // `room`: for bodies.
  Router(core::Core& core, Service& service, BodyRoom& room)
      : core_(core), service_(service), room_(room) {}

  // Asks for keys of this file from here on, and follows it.
  void ask_for_keys(Access access);
  // For the keys' file alone: no other job keeps a revoked key alive.
  Worker& keys_disk() { return keys_disk_; }

  void add(std::span<const Route> routes) { routes_.push_back(routes); }

  // Decides by a request's head whether it may come in; then the room decides on its body. 404: no
  // such route; 401, 403: no key of this server, or none for this route. `path`: as route() gets
  // it.
  void admit(const Head& head, const std::string& path, const Admit& admit);
  // Answers a request, perhaps later.
  void route(Request request, Reply reply);

 private:
  const Route& route_of(const std::string& method, const std::string& path,
                        std::map<std::string, std::string>& parameters) const;
  std::variant<Caller, Response> enter(const Route& route, const Head& head) const;
  Task<Response> answer(Call& call);
  Task<> serve(std::shared_ptr<Call> call, Reply reply, Later<bool> begun);
  void read_body(Call& call) const;

  core::Core& core_;
  Service& service_;
  BodyRoom& room_;
  std::vector<std::span<const Route>> routes_;
  Worker keys_disk_;
};

}  // namespace twinkle::server::api
