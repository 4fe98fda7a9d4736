// Checkpoints: saved by a run, for itself or for samplers, and runs that begin with one.
#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/server/routes.h"

namespace twinkle::server {
namespace {

struct Numbered {
  Run& run;
  int64_t seq_id;
};

Numbered numbered(const Call& call) {
  Run& run = call.services.runs.find(get<std::string>(call.body, "model_id"), call.owner);
  return {run, get<int64_t>(call.body, "seq_id")};
}

Json ack(const Run& run, const std::string& request_id) {
  return {{"request_id", request_id}, {"model_id", run.id}};
}

std::string tinker_path(const Run& run, const std::string& kind, const std::string& name) {
  return "tinker://" + run.id + "/" + kind + "/" + name;
}

// Saves under state/checkpoints/RUN/KIND/NAME.
Json save(const Call& call, const std::string& kind, bool optimizer) {
  const auto [run, seq_id] = numbered(call);
  try {
    const auto name = get<std::string>(call.body, "path");
    const auto folder = call.services.folder_of(run.id, kind, name);
    const bool overwrite = get_or(call.body, "overwrite", false);
    require(overwrite || run.requests.contains(seq_id) || !is_there(folder), Code::kInvalid,
            "server: the checkpoint '", tinker_path(run, kind, name),
            "' exists; choose another name, or overwrite");
    const std::string path = tinker_path(run, kind, name);
    return ack(run, call.services.runs.submit(
                        run, seq_id,
                        engine::Save{
                            .tenant = run.id, .directory = folder.string(), .optimizer = optimizer},
                        [path](const engine::Result&) { return json({{"path", path}}); }));
  } catch (const Error& e) {
    if (e.code != Code::kBusy) call.services.runs.refuse(run, seq_id, e.what(), false);
    throw;
  }
}

}  // namespace

std::optional<Response> save_weights(Call& call) { return json(save(call, "weights", true)); }

std::optional<Response> save_weights_for_sampler(Call& call) {
  if (find(call.body, "path")) return json(save(call, "sampler_weights", false));
  const auto [run, seq_id] = numbered(call);
  Services& s = call.services;
  const std::string request_id =
      s.runs.submit(run, seq_id, engine::Publish{run.id},
                    [&s, id = run.id, base = run.base_model, owner = run.owner,
                     seq = seq_id](const engine::Result& r) {
                      const std::string sampler = id + ":sample:" + std::to_string(seq);
                      s.samplers[sampler] = {.id = sampler,
                                             .owner = owner,
                                             .base_model = base,
                                             .tenant = id,
                                             .version = std::get<engine::PublishResult>(r).version};
                      return json({{"sampling_session_id", sampler}});
                    });
  return json(ack(run, request_id));
}

// Makes a run from a checkpoint.
std::optional<Response> load_weights(Call& call) {
  Services& s = call.services;
  require(!find(call.body, "model_id"), Code::kInvalid,
          "server: LoadWeights is not permitted in a run that exists; use "
          "create_training_client_from_state");
  Session& session = s.session(get<std::string>(call.body, "session_id"), call.owner);
  const auto seq = get<int64_t>(call.body, "model_seq_id");
  const std::string id = session.id + ":train:" + std::to_string(seq);
  if (const auto known = session.runs.find(seq); known != session.runs.end())
    return json({{"request_id", known->second}, {"model_id", id}});
  const auto path = get<std::string>(call.body, "path");
  const auto folder = s.folder_of(path);
  require(folder.parent_path().filename() == "weights", Code::kInvalid, "server: '", path,
          "' is a sampler's checkpoint, which cannot be trained; save_state makes one that can");
  const Run& source = s.runs.find(folder.parent_path().parent_path().filename(), call.owner);
  const bool optimizer = get_or(call.body, "optimizer", false);
  Run run = {.id = id, .owner = call.owner, .base_model = source.base_model, .rank = source.rank};
  const std::string request_id = id + ":0";
  s.promises.open(request_id, call.owner);
  Run& added = s.runs.add(std::move(run));
  session.runs[seq] = request_id;
  const Answered answer = [id, path](const engine::Result&) {
    return json({{"path", path}, {"model_id", id}, {"type", "load_weights"}});
  };
  engine::Create create{.tenant = id, .directory = folder.string()};
  if (!optimizer) {
    s.runs.submit_first(added, request_id, std::move(create), answer);
  } else {
    s.runs.submit_first(added, request_id + ":create", std::move(create), answer);
    s.runs.submit_first(added, request_id,
                        engine::Load{.tenant = id, .directory = folder.string(), .optimizer = true},
                        answer);
  }
  return json(ack(added, request_id));
}

}  // namespace twinkle::server
