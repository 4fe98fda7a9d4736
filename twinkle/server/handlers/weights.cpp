// Checkpoints: saved by a run, for itself or for samplers, and runs that begin with one.
#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/server/handlers/optimizer.h"
#include "twinkle/server/routes.h"

namespace twinkle::server {
namespace {

struct InRun {
  Run& run;
  int64_t seq_id;
};

InRun in_run(const Call& call) { return {call.run(), get<int64_t>(call.body, "seq_id")}; }

std::string tinker_path(const Run& run, const std::string& kind, const std::string& name) {
  return "tinker://" + run.id + "/" + kind + "/" + name;
}

// By a checkpoint, or by a save that has not ended and may become one.
bool is_taken(const Services& s, const Run& run, const std::string& kind, const std::string& name) {
  if (s.checkpoints.contains(tinker_path(run, kind, name))) return true;
  return std::ranges::any_of(run.folders, [&](const auto& saving) {
    const std::filesystem::path& folder = saving.second;  // .../KIND/NAME or NAME@SEQ_ID
    const std::string file = folder.filename().string();
    return folder.parent_path().filename() == kind && file.substr(0, file.find('@')) == name;
  });
}

// Folders of saves that are being written begin with a dot and a name (io/atomic.h), and who saves
// that name removes what was left of it.
void require_visible(const std::string& name) {
  require(!name.starts_with('.'), Code::kInvalid, "server: the name '", name,
          "' of a checkpoint must not begin with '.'; choose another");
}

// Saves under state/checkpoints/RUN/KIND/NAME.
Json save(const Call& call, const std::string& kind, bool optimizer) {
  const auto [run, seq_id] = in_run(call);
  try {
    Services& s = call.services;
    const bool is_new = !run.came(seq_id);
    if (is_new) call.require_allowed();  // of a body that was too long nothing else is known
    const auto name = get<std::string>(call.body, "path");
    const std::string path = tinker_path(run, kind, name);
    const bool overwrite = get_or(call.body, "overwrite", false);
    const auto decided = run.folders.find(seq_id);  // when it came first
    const auto folder =
        decided != run.folders.end() ? decided->second : s.new_folder(run, seq_id, kind, name);
    require(overwrite || !is_new || decided != run.folders.end() || !is_taken(s, run, kind, name),
            Code::kInvalid, "server: the checkpoint '", path,
            "' exists, or is being saved; choose another name",
            kind == "weights" ? ", or give overwrite=True" : "");
    require_visible(name);
    const int64_t bytes = most_bytes(s.backend.model(), run, optimizer);
    const auto counts =
        s.amounts.pend(run.owner, {optimizer ? Amount::kCheckpoint : Amount::kAdapter, bytes});
    const Checkpoint made{.owner = run.owner,
                          .base_model = run.base_model,
                          .rank = run.rank,
                          .folder = folder,
                          .trains = run.trains};
    const std::string request_id =
        s.runs.submit(run, {seq_id, call.key_id, call.time_ms},
                      {engine::Save{.tenant = run.id,
                                    .directory = folder.string(),
                                    .optimizer = optimizer,
                                    .gradients = false},
                       [path](const engine::Result&) { return json({{"path", path}}); }},
                      {}, [&s, path, made, id = run.id, seq_id, counts, bytes](const Ended& ended) {
                        s.runs.find(id)->folders.erase(seq_id);
                        if (!ended.failed) s.checkpoints[path] = made;
                        s.amounts.changed(id, made.folder, ended.failed ? 0 : bytes);
                      });
    if (is_new)
      s.decisions.change([&] {
        run.folders[seq_id] = folder;
        run.saved.insert(kind + "/" + name);
      });
    return ack(run, request_id);
  } catch (const Error& e) {
    if (e.code != Code::kBusy) call.services.runs.refuse(run, seq_id, e.what(), false);
    throw;
  }
}

}  // namespace

std::optional<Response> save_weights(Call& call) { return json(save(call, "weights", true)); }

std::optional<Response> save_weights_for_sampler(Call& call) {
  if (find(call.body, "path")) return json(save(call, "sampler_weights", false));
  const auto [run, seq_id] = in_run(call);
  Services& s = call.services;
  try {
    if (!run.came(seq_id)) {
      call.require_allowed();
      s.decisions.decide([&] { s.kept.require_room(Kept::What::kSampler, run.owner); });
    }
  } catch (const Error& e) {
    s.runs.refuse(run, seq_id, e.what(), false);
    throw;
  }
  const Sampler made{.id = run.id + ":sample:" + std::to_string(seq_id),
                     .owner = run.owner,
                     .base_model = run.base_model,
                     .tenant = run.id,
                     .key_id = run.key_id};
  const auto counts = s.amounts.pend(run.owner, {Amount::kAdapter});
  const std::string request_id = s.runs.submit(
      run, {seq_id, call.key_id, call.time_ms},
      {engine::Publish{run.id},
       [id = made.id](const engine::Result&) { return json({{"sampling_session_id", id}}); }},
      {}, [&s, made, counts](const Ended& ended) {
        if (ended.failed) return;
        Sampler sampler = made;
        sampler.version = ++s.runs.find(made.tenant)->num_published;
        if (const auto folder = s.snapshots.version(made.tenant, sampler.version)) {
          sampler.tenant = s.tenant_of(*folder, sampler.owner, sampler.key_id);
          sampler.version = 0;
        }
        s.add(std::move(sampler));
      });
  return json(ack(run, request_id));
}

std::optional<Response> save_weights_external(Call& call) {
  call.run();
  fail(Code::kNotFound,
       "server: save_weights_external is not there; save_state and save_weights_for_sampler write "
       "folders in peft's form below STATE/checkpoints, which the operator can copy");
}

std::optional<Response> weights_info(Call& call) {
  const Checkpoint* const of = call.touched.checkpoint;
  require(of, Code::kInvalid, "server: tinker_path is missing");
  JsonObject out{{"base_model", of->base_model},
                 {"is_lora", true},
                 {"lora_rank", of->rank},
                 {"optimizer_config", {{"type", "adamw"}}}};
  for (const auto& [group, is_on] : of->trains) out[group] = is_on;
  return json(out);
}

// Makes a run from a checkpoint.
std::optional<Response> load_weights(Call& call) {
  Services& s = call.services;
  require(!find(call.body, "model_id"), Code::kInvalid,
          "server: LoadWeights is not permitted in a run that exists; use "
          "create_training_client_from_state");
  Session& session = call.session();
  const auto seq = get<int64_t>(call.body, "model_seq_id");
  const std::string id = run_id(session, seq);
  if (const auto known = session.runs.find(seq); known != session.runs.end())
    return json({{"request_id", known->second}, {"model_id", id}});
  call.open_session();
  call.require_allowed();
  call.require_number("model_seq_id", seq);
  require_adamw(call.body);
  require(call.touched.checkpoint, Code::kInvalid, "server: path is missing");
  const auto path = get<std::string>(call.body, "path");
  const Checkpoint& from = *call.touched.checkpoint;
  require(from.folder.parent_path().filename() == "weights", Code::kInvalid, "server: '", path,
          "' is a sampler's checkpoint, which cannot be trained; save_state makes one that can");
  require(
      !find(call.body, "weights_access_token"), Code::kInvalid,
      "server: weights_access_token is not there: a key sees its own tenant's checkpoints alone");
  const bool optimizer = get_or(call.body, "optimizer", false);
  const auto base = get_or<std::string>(call.body, "base_model", "");
  if (!base.empty()) s.require_model(base);
  Run run = {
      .id = id,
      .owner = call.owner,
      .base_model = base.empty() ? from.base_model : base,
      .rank = from.rank,
      .key_id = call.key_id,
      .last_ms = call.time_ms,
      .trains = from.trains,
  };
  const std::string folder = from.folder.string(), request_id = id + ":0";
  std::vector<engine::Operation> operations;
  operations.emplace_back(s.standing({.tenant = id, .directory = folder}, call.owner, call.key_id));
  if (optimizer)
    operations.emplace_back(engine::Load{.tenant = id, .directory = folder, .optimizer = true});
  s.decisions.decide([&] {
    for (const engine::Operation& o : operations) s.backend.validate(o);
    require_fits(s.backend, run);
    s.promises.require_room(call.owner);
  });
  const Answered answer = [id, path](const engine::Result&) {
    return json({{"path", path}, {"model_id", id}, {"type", "load_weights"}});
  };
  const auto tell_failure = [&s, request_id](const Ended& ended) {
    if (ended.failed)
      s.promises.settle(request_id, {.body = ended.body, .content_type = ended.content_type});
  };
  const Response told = json(ack(run, request_id));
  s.decisions.change([&] {
    s.promises.open(request_id, call.owner, call.key_id);
    session.runs[seq] = request_id;
    Run& added = s.runs.add(std::move(run));
    for (size_t i = 0; i < operations.size(); ++i) {
      const bool last = i + 1 == operations.size();
      s.runs.submit_first(
          added, std::make_shared<Pending>(last ? request_id : request_id + "." + std::to_string(i),
                                           Ready{std::move(operations[i]), answer}, Source{},
                                           tell_failure));
    }
  });
  return told;
}

}  // namespace twinkle::server
