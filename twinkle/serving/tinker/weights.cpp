// Checkpoints over Tinker's wire: saved by a run, for itself or for samplers, loaded, listed, kept
// and deleted.
#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/serving/core/quotas.h"
#include "twinkle/serving/tinker/routes.h"

namespace twinkle::server::tinker {
namespace {

// Saves under state/checkpoints/RUN/KIND/NAME.
Task<Response> save(api::Call& call, std::string kind, bool optimizer) {
  core::Numbered numbered = numbered_of(call, "");
  const core::Run& run = call.run();
  const std::string name = get_or<std::string>(call.body, "path", "");
  numbered.saves = core::new_checkpoint(call.core, run, numbered.seq_id, kind, name);
  numbered.saves.user_metadata = api::text_of_object(call.body, "user_metadata");
  numbered.saves.expires_ms = expires_of(call.body, numbered.saves.created_ms);
  numbered.note = "save " + numbered.saves.path;
  const bool overwrite = get_or(call.body, "overwrite", false);
  const auto make = [&](const core::Run& of) -> engine::Operation {
    core::require_name(name);
    require(overwrite || !core::is_taken(call.core, of, numbered.saves.path), Code::kInvalid,
            "server: the checkpoint '", kScheme, numbered.saves.path,
            "' exists, or is being saved; choose another name",
            kind == "weights" ? ", or give overwrite=True" : "");
    core::require_save(call.core, of, optimizer, true);
    return engine::Save{.tenant = of.id,
                        .directory = numbered.saves.folder,
                        .optimizer = optimizer,
                        .gradients = false};
  };
  const std::string id = co_await call.core.submit(numbered, make);
  co_return ack(id);
}

}  // namespace

Task<Response> save_weights(api::Call& call) { return save(call, "weights", true); }

Task<Response> save_weights_for_sampler(api::Call& call) {
  if (find(call.body, "path")) co_return co_await save(call, "sampler_weights", false);
  core::Numbered numbered = numbered_of(call, "");
  numbered.sampler = numbered.run + ":sample:" + std::to_string(numbered.seq_id);
  numbered.note = "publish " + numbered.sampler;
  const auto make = [&](const core::Run& run) -> engine::Operation {
    core::require_sampler(call.core, run.owner);
    core::require_save(call.core, run, false, false);
    return engine::Publish{run.id};
  };
  const std::string id = co_await call.core.submit(std::move(numbered), make);
  co_return ack(id);
}

Task<Response> save_weights_external(api::Call& call) {
  call.run();
  fail(Code::kNotFound,
       "server: save_weights_external is not there; save_state and save_weights_for_sampler write "
       "folders in peft's form below STATE/checkpoints, which the operator can copy");
  co_return {};
}

Task<Response> weights_info(api::Call& call) {
  const core::Checkpoint& of = checkpoint_of(call, "tinker_path");
  JsonObject out{{"base_model", of.base_model},
                 {"is_lora", true},
                 {"lora_rank", of.rank},
                 {"optimizer_config", {{"type", "adamw"}}}};
  for (const auto& [group, is_on] : of.trains) out[group] = is_on;
  co_return api::json(out);
}

// Makes a run from a checkpoint, or puts its weights into one.
Task<Response> load_weights(api::Call& call) {
  const core::Checkpoint from = checkpoint_of(call, "path");
  const std::string path = kScheme + from.path;
  require(from.path.find("/weights/") != std::string::npos, Code::kInvalid, "server: '", path,
          "' is a sampler's checkpoint, which cannot be trained; save_state makes one that can");
  require(!find(call.body, "weights_access_token"), Code::kInvalid,
          "server: weights_access_token is not there: a key sees its own tenant's checkpoints, and "
          "those that are published");
  const bool optimizer = get_or(call.body, "optimizer", false);
  if (find(call.body, "model_id")) {
    core::Numbered into = numbered_of(call, "load_weights " + path);
    const auto make = [&](const core::Run& run) -> engine::Operation {
      return engine::Load{.tenant = run.id, .directory = from.folder, .optimizer = optimizer};
    };
    const std::string id = co_await call.core.submit(std::move(into), make);
    co_return ack(id);
  }
  const core::Session& session = call.session();
  const int64_t seq = call.integer("model_seq_id");
  if (const auto known = session.runs.find(seq); known != session.runs.end())
    co_return ack(known->second, 0);
  call.open_session();
  require_adamw(call.body);
  core::Run run = new_run(call, session, seq);
  run.base_model = get_or<std::string>(call.body, "base_model", "");
  if (run.base_model.empty())
    run.base_model = from.base_model;
  else
    require_model(call, run.base_model);
  run.rank = from.rank;
  run.trains = from.trains;
  run.targets = from.targets;
  run.origin = {.folder = from.folder, .optimizer = optimizer};
  const std::string id = run.id;
  core::CreateRun create{.number = seq, .run = std::move(run), .note = "load_weights " + path};
  co_await call.core.create_run(std::move(create));
  co_return ack(id, 0);
}

}  // namespace twinkle::server::tinker
