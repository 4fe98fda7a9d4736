// Lists of a tenant's sessions, runs and checkpoints over Tinker's wire, and what may be done with
// a checkpoint that is there.
#include <algorithm>
#include <charconv>

#include "twinkle/base/error.h"
#include "twinkle/serving/domain/clock.h"
#include "twinkle/serving/tinker/routes.h"

namespace twinkle::server::tinker {
namespace {

constexpr int64_t kMostListed = 1000;  // in one answer
constexpr int64_t kMostSeconds = int64_t{1} << 40;

// A part of a list: so many from there on.
struct Page {
  int64_t offset = 0, limit = 0;
};

// The query's number of this name. Error kInvalid: none from `least` to `most`.
int64_t number_in(const std::string& query, const std::string& name, int64_t fallback,
                  int64_t least, int64_t most) {
  const std::string key = name + "=";
  size_t at = query.starts_with(key) ? 0 : query.find("&" + key);
  if (at == std::string::npos) return fallback;
  at += at > 0 ? key.size() + 1 : key.size();
  const std::string text = query.substr(at, query.find('&', at) - at);
  int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  const bool is_number = error == std::errc() && end == text.data() + text.size();
  require(is_number && out >= least && out <= most, Code::kInvalid, "server: ", name, " is '", text,
          "', it must be a number from ", least, " to ", most);
  return out;
}

Page page_of(const api::Call& call, int64_t limit) {
  const std::string& query = call.request.query;
  return {number_in(query, "offset", 0, 0, INT64_MAX / 2),
          number_in(query, "limit", limit, 1, kMostListed)};
}

// Those of the page, newest first, as `told` has each; and where the next page begins.
template <class T, class Told>
Response listed(const char* name, std::vector<const T*> all, const Page& page, const Told& told) {
  std::ranges::sort(all, std::ranges::greater(), [](const T* of) { return of->created_ms; });
  JsonArray out;
  for (int64_t i = page.offset; i < std::min<int64_t>(std::ssize(all), page.offset + page.limit);
       ++i)
    out.push_back(told(*all[i]));
  return api::json(
      {{name, std::move(out)},
       {"cursor",
        {{"offset", page.offset}, {"limit", page.limit}, {"total_count", std::ssize(all)}}}});
}

template <class Map>
auto own(const Map& all, const std::string& owner) {
  std::vector<const typename Map::mapped_type*> out;
  for (const auto& [id, one] : all)
    if (one.owner == owner) out.push_back(&one);
  return out;
}

Json checkpoint_told(const core::Checkpoint& of) {
  const std::string id = of.path.substr(of.run.size() + 1);
  JsonObject out{{"checkpoint_id", id},
                 {"checkpoint_type", id.starts_with("sampler") ? "sampler" : "training"},
                 {"time", api::utc(of.created_ms)},
                 {"tinker_path", kScheme + of.path},
                 {"size_bytes", of.bytes},
                 {"public", of.is_public}};
  if (!of.user_metadata.empty()) out["user_metadata"] = parse_json(of.user_metadata, "metadata");
  if (of.expires_ms > 0) out["expires_at"] = api::utc(of.expires_ms);
  return out;
}

std::vector<const core::Checkpoint*> checkpoints_of(const api::Call& call, const core::Run& run) {
  std::vector<const core::Checkpoint*> out;
  const auto& all = call.core.domain().checkpoints();
  for (auto it = all.lower_bound(run.id + "/"); it != all.end(); ++it) {
    if (it->second.run != run.id) break;
    out.push_back(&it->second);
  }
  return out;
}

Json run_told(const api::Call& call, const core::Run& run) {
  JsonObject out{{"training_run_id", run.id},
                 {"base_model", run.base_model},
                 {"model_owner", run.owner},
                 {"is_lora", true},
                 {"lora_rank", run.rank},
                 {"corrupted", !run.lost.empty()},
                 {"last_request_time", api::utc(run.last_ms)}};
  if (!run.user_metadata.empty()) out["user_metadata"] = parse_json(run.user_metadata, "metadata");
  for (const auto& [kind, name] : {std::pair("/weights/", "last_checkpoint"),
                                   std::pair("/sampler_weights/", "last_sampler_checkpoint")}) {
    const core::Checkpoint* last = nullptr;
    for (const core::Checkpoint* of : checkpoints_of(call, run))
      if (of->path.find(kind) != std::string::npos && (!last || of->created_ms >= last->created_ms))
        last = of;
    if (last) out[name] = checkpoint_told(*last);
  }
  return out;
}

// The path's checkpoint, RUN/KIND/NAME.
const core::Checkpoint& path_checkpoint(const api::Call& call, bool is_own) {
  return call.checkpoint(
      call.path.at("model_id") + "/" + call.path.at("kind") + "/" + call.path.at("name"), "name",
      is_own);
}

}  // namespace

int64_t expires_of(const Json& body, int64_t now_ms) {
  const Json* const ttl = find(body, "ttl_seconds");
  if (!ttl) return 0;
  const auto seconds = get<int64_t>(body, "ttl_seconds");
  require(seconds >= 1 && seconds <= kMostSeconds, Code::kInvalid, "server: ttl_seconds is ",
          seconds, ", it must be from 1 to ", kMostSeconds, ", or null: for good");
  return now_ms + seconds * 1000;
}

Task<Response> list_training_runs(api::Call& call) {
  co_return listed("training_runs", own(call.core.domain().runs(), call.owner()), page_of(call, 20),
                   [&](const core::Run& run) { return run_told(call, run); });
}

Task<Response> get_training_run(api::Call& call) {
  co_return api::json(run_told(call, call.run()));
}

Task<Response> list_run_checkpoints(api::Call& call) {
  co_return listed("checkpoints", checkpoints_of(call, call.run()), page_of(call, kMostListed),
                   checkpoint_told);
}

Task<Response> list_checkpoints(api::Call& call) {
  co_return listed("checkpoints", own(call.core.domain().checkpoints(), call.owner()),
                   page_of(call, 100), checkpoint_told);
}

Task<Response> list_sessions(api::Call& call) {
  co_return listed("sessions", own(call.core.domain().sessions(), call.owner()), page_of(call, 20),
                   [](const core::Session& session) { return Json(session.id); });
}

Task<Response> get_session(api::Call& call) {
  const core::Session& session = call.session();
  JsonArray runs, samplers;
  for (const auto& [seq, id] : session.runs)
    if (call.core.domain().run(id)) runs.push_back(Json(id));
  for (const auto& [seq, id] : session.samplers) samplers.push_back(Json(id));
  JsonObject out{{"training_run_ids", std::move(runs)}, {"sampler_ids", std::move(samplers)}};
  if (!session.user_metadata.empty())
    out["user_metadata"] = parse_json(session.user_metadata, "metadata");
  co_return api::json(out);
}

Task<Response> delete_training_run(api::Call& call) {
  core::DeleteRun command{call.run().id};
  co_await call.core.commit(std::move(command));
  co_return api::json(JsonObject{});
}

// It takes no more requests, and makes room for others.
Task<Response> finish_training_run(api::Call& call) {
  const core::Run& run = call.run();
  core::FinishRun command{run.id};
  if (!run.finished) co_await call.core.commit(std::move(command));
  co_return api::json(JsonObject{});
}

Task<Response> delete_checkpoint(api::Call& call) {
  core::DeleteCheckpoint command{path_checkpoint(call, true).path};
  co_await call.core.commit(std::move(command));
  co_return api::json(JsonObject{});
}

namespace {

Task<Response> keep(api::Call& call, bool is_public, int64_t expires_ms) {
  core::KeepCheckpoint command{path_checkpoint(call, true).path, is_public, expires_ms};
  co_await call.core.commit(std::move(command));
  co_return api::json(JsonObject{});
}

}  // namespace

// Never 409, which the SDK would send again for five minutes.
Task<Response> publish_checkpoint(api::Call& call) {
  const core::Checkpoint& of = path_checkpoint(call, true);
  require(!of.is_public, Code::kInvalid, "server: the checkpoint is published already");
  co_return co_await keep(call, true, of.expires_ms);
}

Task<Response> unpublish_checkpoint(api::Call& call) {
  const core::Checkpoint& of = path_checkpoint(call, true);
  require(of.is_public, Code::kInvalid, "server: the checkpoint is not published");
  co_return co_await keep(call, false, of.expires_ms);
}

Task<Response> set_checkpoint_ttl(api::Call& call) {
  const core::Checkpoint& of = path_checkpoint(call, true);
  const int64_t expires = expires_of(call.body, core::milliseconds_since_1970());
  co_return co_await keep(call, of.is_public, expires);
}

}  // namespace twinkle::server::tinker
