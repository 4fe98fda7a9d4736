#include "twinkle/serving/api/call.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "twinkle/server/replay/brief.h"

namespace twinkle::server::api {
namespace {

// `found` if it is the caller's own.
template <class T>
const T& own(const Call& call, const std::string& field, const std::string& id, const T* found) {
  require(!id.empty(), Code::kInvalid, "server: ", field, " is missing");
  require(found && found->owner == call.owner(), Code::kNotFound, "server: ", field, " '",
          quoted(id), "' is not known");
  return *found;
}

}  // namespace

std::string Call::named(const std::string& field) const {
  if (const auto it = path.find(field); it != path.end()) return it->second;
  return get_or<std::string>(body, field, "");
}

const core::Session& Call::session() const {
  const std::string id = named("session_id");
  const core::Session& out = own(*this, "session_id", id, core.domain().session(id));
  core.heard(id);
  return out;
}

const core::Session& Call::open_session() const {
  const core::Session& out = session();
  require(!out.finished, Code::kInvalid, "server: the session '", out.id,
          "' has finished; make another");
  return out;
}

const core::Run& Call::run(const std::string& id) const {
  const core::Run& out = own(*this, "model_id", id, core.domain().run(id));
  core.heard(out.session);
  return out;
}

const core::Sampler& Call::sampler() const {
  const std::string id = named("sampling_session_id");
  const core::Sampler& out = own(*this, "sampling_session_id", id, core.domain().sampler(id));
  core.heard(out.session);
  return out;
}

const core::Future& Call::future() const {
  const std::string id = named("request_id");
  const core::Future* const found = core.domain().future(id);
  const bool is_too_late = caller.revoked_at && (!found || found->number > *caller.revoked_at);
  require(!is_too_late, Code::kNotFound, "server: request_id '", quoted(id), "' is not known");
  require(id.empty() || (found && found->owner == owner()), Code::kNotFound, "server: request_id '",
          quoted(id), "' is not known", core.futures().retention_note());
  return own(*this, "request_id", id, found);
}

const core::Checkpoint& Call::checkpoint(const std::string& path_of, const char* field,
                                         bool is_own) const {
  const core::Checkpoint* const found = core.domain().checkpoint(path_of);
  const bool may = found && (found->owner == owner() || (found->is_public && !is_own));
  require(may, Code::kNotFound, "server: ", field, " '", quoted(named(field)),
          "' is not known; paths are tinker://RUN/weights/NAME and "
          "tinker://RUN/sampler_weights/NAME");
  return *found;
}

std::string text_of_object(const Json& body, const char* field) {
  constexpr size_t kMost = size_t{16} << 10;
  const Json* const found = find(body, field);
  if (!found || found->is_null()) return "";
  const auto is_text = [](const auto& at) { return at.value().is_string(); };
  require(found->is_object() && std::ranges::all_of(found->get_object(), is_text), Code::kInvalid,
          "server: ", field, " must be an object of texts, such as {\"name\": \"first\"}");
  std::string out = found->get_object().empty() ? "" : boost::json::serialize(*found);
  require(out.size() <= kMost, Code::kInvalid, "server: ", field, " has ", out.size(),
          " bytes, the limit is ", kMost);
  return out;
}

std::string utc(int64_t ms) {
  const std::time_t seconds = ms / 1000;
  std::tm parts = {};
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%FT%TZ", ::gmtime_r(&seconds, &parts));
  return text.data();
}

Response json(const Json& body) {
  Response out{.body = boost::json::serialize(body)};
  if (find(body, "request_id")) out.promise = get<std::string>(body, "request_id");
  return out;
}

}  // namespace twinkle::server::api
