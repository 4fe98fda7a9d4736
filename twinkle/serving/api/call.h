// A request on its way through a route, whatever its protocol: who asks, what the request names,
// and that all of it is the caller's own. The one place where owners are compared.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"
#include "twinkle/server/auth/access.h"
#include "twinkle/server/http/message.h"
#include "twinkle/serving/core/core.h"

namespace twinkle::server::api {

struct Route;
struct Service;

struct Call {
  Request request;
  const Route* route = nullptr;
  std::map<std::string, std::string> path;  // the parameters of the path
  Json body;                                // a JSON request's, else null
  Caller caller;
  core::Core& core;
  Service& service;

  const std::string& owner() const { return caller.owner; }
  // The text that the path, or else the body, has under this name, or "". Error kInvalid: no text.
  std::string named(const std::string& field) const;

  // The caller's own of that name. Error kInvalid: the request names none; kNotFound: something is
  // not there, or another owner's, which look the same.
  const core::Session& session() const;       // session_id
  const core::Session& open_session() const;  // and kInvalid: it has finished
  const core::Run& run(const std::string& id) const;
  const core::Run& run() const { return run(named("model_id")); }  // model_id
  const core::Sampler& sampler() const;                            // sampling_session_id
  const core::Future& future() const;                              // request_id
  // `path`: RUN/KIND/NAME. Also another's that is published, unless it is to be `own`.
  const core::Checkpoint& checkpoint(const std::string& path, const char* field,
                                     bool own = false) const;

  int64_t integer(const char* field) const { return get<int64_t>(body, field); }
};

Response json(const Json& body);
// The object that the body has under this name, of texts, as JSON text; "": it has none. Error
// kInvalid: it is no such object, or is longer than 16 KiB.
std::string text_of_object(const Json& body, const char* field);
// "2026-11-28T17:05:09Z".
std::string utc(int64_t ms);

// A route's answer: a coroutine, so that it may wait for the journal, the engine or the disk.
using Handler = Task<Response> (*)(Call& call);

// The form of a body that a route takes; kShort: JSON of a few words.
enum class Form { kNone, kJson, kShort, kProtobuf };

// A request that is wrong uses its number up all the same: its run would wait for it.
struct Numbers {
  // Finds the number in a body that cannot be read, or is too long to be taken.
  std::shared_ptr<Finder> (*finder)(bool is_protobuf);
  // Makes `why` the result of the number that the request's body has, and returns its
  // acknowledgement; nothing: it is no number of a run of the caller's.
  Task<std::optional<Response>> (*fail)(Call& call, std::string why);
};

struct Route {
  std::string_view verb, path;
  Handler run;
  Scope scope;
  Form form = Form::kJson;
  bool is_audited = false;           // a line of the audit log says who asked, before it is done
  const Numbers* numbers = nullptr;  // for requests that have numbers of a run
  // A refusal, {"detail": text}, as the protocol has it; any other response as it is. Null: so.
  Response (*in_form)(Response response) = nullptr;
};

}  // namespace twinkle::server::api
