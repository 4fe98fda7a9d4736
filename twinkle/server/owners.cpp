#include "twinkle/server/owners.h"

#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/server/replay/brief.h"
#include "twinkle/server/routes.h"
#include "twinkle/server/tinker/forward_backward_request.h"

namespace twinkle::server {
namespace {

// What the request has under that name, or "".
std::string named(const Call& call, const std::string& field) {
  if (const auto it = call.path.find(field); it != call.path.end()) return it->second;
  if (field == "model_id" && call.body.is_null())
    return tinker::address_of(call.request.body).model_id;
  return get_or<std::string>(call.body, field, "");
}

bool is_own(const Call& call, const auto* found) { return found && found->owner == call.owner; }

constexpr const char* kPaths =
    "; paths are tinker://RUN/weights/NAME and tinker://RUN/sampler_weights/NAME";

// The one of that id, by `find`; nothing where the request names none.
template <class Find>
auto own(const Call& call, const std::string& field, const Find& find,
         const std::string& remedy = "") -> decltype(find(std::string())) {
  const std::string id = named(call, field);
  if (id.empty()) return nullptr;
  auto* const found = find(id);
  require(is_own(call, found), Code::kNotFound, "server: ", field, " '", quoted(id),
          "' is not known", remedy);
  return found;
}

// The same with tinker:// for twinkle://, which is how ModelScope's Twinkle writes it.
void name_as_tinker(Call& call, const std::string& field) {
  constexpr std::string_view kTwinkle = "twinkle://";
  std::string path = named(call, field);
  if (!path.starts_with(kTwinkle)) return;
  path.replace(0, kTwinkle.size(), "tinker://");
  if (const auto it = call.path.find(field); it != call.path.end())
    it->second = path;
  else
    call.body.as_object()[field] = path;
}

template <class T>
auto in(std::map<std::string, T>& all) {
  return [&all](const std::string& id) {
    const auto found = all.find(id);
    return found == all.end() ? nullptr : &found->second;
  };
}

}  // namespace

std::optional<Response> touch(Call& call, unsigned touches, const Caller& caller) {
  Services& s = call.services;
  Touched& out = call.touched;
  const auto promise = [&s](const std::string& id) { return s.promises.find(id); };
  if (caller.revoked_at) {
    const auto* began = promise(named(call, "request_id"));
    if (!is_own(call, began) || began->number > *caller.revoked_at) return revoked(caller);
  }
  if (touches & kSession) out.session = own(call, "session_id", in(s.sessions));
  if (touches & kRun)
    out.run = own(call, "model_id", [&s](const std::string& id) { return s.runs.find(id); });
  if (touches & kSampler) out.sampler = own(call, "sampling_session_id", in(s.samplers));
  if ((touches & kPromise) && own(call, "request_id", promise, s.promises.told_kept()))
    out.promise = named(call, "request_id");
  if (out.session) s.silence.heard(out.session->id);
  if (out.run) s.silence.heard(out.run->id);
  if (out.sampler) s.silence.heard(out.sampler->id);
  if (!out.promise.empty()) s.silence.heard(out.promise);
  constexpr std::pair<Touches, const char*> kCheckpoints[] = {
      {kCheckpoint, "path"}, {kTinkerPath, "tinker_path"}, {kModelPath, "model_path"}};
  for (const auto& [flag, field] : kCheckpoints) {
    if (!(touches & flag)) continue;
    name_as_tinker(call, field);
    out.checkpoint = own(call, field, in(s.checkpoints), kPaths);
  }
  return std::nullopt;
}

}  // namespace twinkle::server
