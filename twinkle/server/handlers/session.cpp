// Configuration, sessions and what the SDK tells on the side.
#include "twinkle/base/error.h"
#include "twinkle/server/routes.h"

namespace twinkle::server {

std::optional<Response> client_config(Call& call) { return json(call.services.client_flags); }

std::optional<Response> client_dynamic_config(Call&) { return json(JsonObject{}); }

std::optional<Response> create_session(Call& call) {
  Services& s = call.services;
  const std::string& id = call.chance;
  s.decisions.decide([&] { s.kept.require_room(Kept::What::kSession, call.owner); });
  Response told = json({{"session_id", id}, {"type", "create_session"}});
  s.decisions.change([&] { s.add(Session{.id = id, .owner = call.owner}); });
  return told;
}

std::optional<Response> session_heartbeat(Call& call) {
  call.session();
  return json({{"type", "session_heartbeat"}});
}

// What its runs were sent goes on, but for what waits for a number that will not come. The client
// reads no more samples.
std::optional<Response> finish_session(Call& call) {
  Session& session = call.session();
  if (session.finished) return json(JsonObject{});
  Services& s = call.services;
  s.decisions.change([&] {
    session.finished = true;
    s.operations.cancel_samples(session.id);
    for (const auto& [seq, request_id] : session.runs)
      if (Run* run = s.runs.find(run_id(session, seq))) s.runs.end_session(*run);
  });
  return json(JsonObject{});
}

std::optional<Response> telemetry(Call&) { return json({{"status", "accepted"}}); }

std::optional<Response> get_server_capabilities(Call& call) {
  JsonArray models;
  const ModelFacts& model = call.services.backend.model();
  for (const std::string& name : model.names)
    models.push_back({{"model_name", name},
                      {"max_context_length", model.max_positions},
                      {"trainable", true},
                      {"sampleable", true}});
  return json({{"supported_models", std::move(models)}});
}

std::optional<Response> retrieve_future(Call& call) {
  require(!call.touched.promise.empty(), Code::kInvalid, "server: request_id is missing");
  const std::string& id = call.touched.promise;
  Promises& promises = call.services.promises;
  const int64_t waits = promises.poll(id, [id, reply = call.reply](Response response) {
    response.promise = id;
    reply(std::move(response));
  });
  if (waits > 0 && call.request.when_gone)
    call.request.when_gone([&promises, id, waits] { promises.forget(id, waits); });
  return std::nullopt;
}

}  // namespace twinkle::server
