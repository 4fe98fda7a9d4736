// The one place where owners are compared: whether what a request names belongs to its caller.
// routes.def says what a route touches; handlers have it from Call alone.
#pragma once
#include <optional>
#include <string>

#include "twinkle/server/auth/access.h"
#include "twinkle/server/service/services.h"

namespace twinkle::server {

struct Call;

// Each is named by a parameter of the path, or else by a field of the body, of the name that is
// said here. A route may touch several.
enum Touches : unsigned {
  kNothing = 0,
  kSession = 1,      // session_id
  kRun = 2,          // model_id, of a protobuf too
  kSampler = 4,      // sampling_session_id
  kPromise = 8,      // request_id
  kCheckpoint = 16,  // path: "tinker://RUN/KIND/NAME"
  kModelPath = 32,   // model_path, which is a checkpoint, too
  kTinkerPath = 64,  // tinker_path, likewise
  // These name nothing.
  kAudited = 128,  // a line of the audit log says who asked, before it is done
  // What it makes counts toward a limit of its tenant (tenants/amounts.h).
  kMakesRun = 256,
  kMakesAdapter = 512,
  kMakesCheckpoint = 1024,
  // It is refused whenever it names a run, whose number it uses up all the same: else that run
  // would wait for it for ever.
  kUsesUp = 2048
};

// The caller's own; null or empty where the request names none.
struct Touched {
  Session* session = nullptr;
  Run* run = nullptr;
  Sampler* sampler = nullptr;
  std::string promise = {};
  const Checkpoint* checkpoint = nullptr;
};

// Finds what the request names, for call.touched. A refusal, 401, of a caller whose key is revoked,
// unless it asks for the result of what began before. Of a journalled request when its turn has
// come, in a replay too. Error kNotFound: something is not there, or another owner's, which look
// the same; kInvalid: a name that is no text.
std::optional<Response> touch(Call& call, unsigned touches, const Caller& caller);

}  // namespace twinkle::server
