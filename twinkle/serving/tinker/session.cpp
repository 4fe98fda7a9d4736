// Configuration, sessions and results over Tinker's wire.
#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/server/replay/brief.h"
#include "twinkle/serving/core/quotas.h"
#include "twinkle/serving/domain/clock.h"
#include "twinkle/serving/tinker/answers.h"
#include "twinkle/serving/tinker/routes.h"

namespace twinkle::server::tinker {

Response ack(const std::string& request_id) {
  return api::json(
      {{"request_id", request_id}, {"model_id", core::parse_request_id(request_id).first}});
}

void require_number(const char* field, int64_t number) {
  require(number >= 0, Code::kInvalid, "server: ", field, " is ", number,
          ", it must be at least 0");
}

void require_model(const api::Call& call, const std::string& name) {
  const auto& names = call.core.backend().model().names;
  if (std::ranges::find(names, name) != names.end()) return;
  std::string known;
  for (const std::string& n : names) known += (known.empty() ? "" : ", ") + n;
  const std::string nearest = nearest_of(name, names);
  fail(Code::kInvalid, "server: base_model '", quoted(name), "' is not served here, only ", known,
       nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

void require_adamw(const Json& body) {
  const Json* config = find(body, "optimizer_config");
  const auto type = config ? get<std::string>(*config, "type") : "adamw";
  require(type == "adamw", Code::kInvalid, "server: optimizer_config.type is '", type,
          "', it must be adamw, the optimizer here");
}

core::Run new_run(const api::Call& call, const core::Session& session, int64_t seq) {
  require_number("model_seq_id", seq);
  const int64_t now = core::milliseconds_since_1970();
  return {.id = session.id + ":train:" + std::to_string(seq),
          .owner = call.owner(),
          .key_id = call.caller.key_id,
          .session = session.id,
          .user_metadata = api::text_of_object(call.body, "user_metadata"),
          .created_ms = now,
          .last_ms = now};
}

core::Numbered numbered_of(const api::Call& call, std::string note) {
  return {.run = call.run().id,
          .seq_id = call.integer("seq_id"),
          .key_id = call.caller.key_id,
          .note = std::move(note)};
}

const core::Checkpoint& checkpoint_of(const api::Call& call, const char* field, bool own) {
  const std::string path = call.named(field);
  require(!path.empty(), Code::kInvalid, "server: ", field, " is missing");
  for (const std::string_view scheme : {"tinker://", "twinkle://"})
    if (path.starts_with(scheme)) return call.checkpoint(path.substr(scheme.size()), field, own);
  return call.checkpoint("", field, own);
}

Task<Response> client_config(api::Call& call) { co_return api::json(call.service.client_flags); }

Task<Response> client_dynamic_config(api::Call&) { co_return api::json(JsonObject{}); }

Task<Response> create_session(api::Call& call) {
  core::require_session(call.core, call.owner());
  core::OpenSession open{{.id = core::new_id(),
                          .owner = call.owner(),
                          .created_ms = core::milliseconds_since_1970(),
                          .user_metadata = api::text_of_object(call.body, "user_metadata")}};
  if (const Json* tags = find(call.body, "tags"); tags && tags->is_array())
    for (const Json& tag : tags->get_array())
      if (tag.is_string()) open.session.tags.emplace_back(tag.get_string());
  const std::string id = open.session.id;
  co_await call.core.commit(std::move(open));
  co_return api::json({{"session_id", id}, {"type", "create_session"}});
}

Task<Response> session_heartbeat(api::Call& call) {
  call.session();
  co_return api::json({{"type", "session_heartbeat"}});
}

// Requests that its runs were sent go on, but for those that wait for a number that will not come.
// The client reads no more samples.
Task<Response> finish_session(api::Call& call) {
  const core::Session& session = call.session();
  core::FinishSession finish{session.id};
  if (!session.finished) co_await call.core.commit(std::move(finish));
  co_return api::json(JsonObject{});
}

Task<Response> telemetry(api::Call&) { co_return api::json({{"status", "accepted"}}); }

Task<Response> get_server_capabilities(api::Call& call) {
  JsonArray models;
  const ModelFacts& model = call.core.backend().model();
  for (const std::string& name : model.names)
    models.push_back({{"model_name", name},
                      {"max_context_length", model.max_positions},
                      {"trainable", true},
                      {"sampleable", true}});
  co_return api::json({{"supported_models", std::move(models)}});
}

Task<Response> retrieve_future(api::Call& call) {
  const std::string id = call.future().id;
  const Later<bool> gone;
  if (call.request.when_gone) call.request.when_gone([gone] { gone.set(false); });
  const core::Result result = co_await call.core.wait(id, gone);
  Response out;
  if (result) {
    out = answer_of(*call.core.domain().future(id), *result);
  } else {
    JsonObject state{{"queue_state", "active"}};
    if (!call.core.held_by(id).empty()) state["queue_state"] = "paused_rate_limit";
    if (const std::string why = call.core.why_waits(id); !why.empty())
      state["queue_state_reason"] = why;
    out = {.status = 408, .body = boost::json::serialize(state)};
  }
  out.promise = id;
  co_return out;
}

}  // namespace twinkle::server::tinker
