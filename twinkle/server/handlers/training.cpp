// Training runs: their creation, forward_backward and optim_step.
#include <algorithm>
#include <array>
#include <cmath>
#include <ctime>
#include <limits>
#include <map>

#include "twinkle/base/error.h"
#include "twinkle/server/handlers/optimizer.h"
#include "twinkle/server/routes.h"
#include "twinkle/server/tinker/forward_backward_request.h"
#include "twinkle/server/tinker/modelscope.h"
#include "twinkle/server/tinker/modules.h"
#include "twinkle/server/tinker/results.h"

namespace twinkle::server {
namespace {

using tinker::Tensor;

constexpr int64_t kLoraAlpha = 32;  // Tinker's, whatever the rank
constexpr int64_t kMaxRank = 512;

std::string utc(int64_t ms) {
  const std::time_t seconds = ms / 1000;
  std::tm parts = {};
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%FT%TZ", ::gmtime_r(&seconds, &parts));
  return text.data();
}

std::vector<float> floats(const Tensor& tensor, const std::string& where) {
  auto out = tinker::cells_of<float>(tensor, [](auto value) { return static_cast<float>(value); });
  const auto wrong = std::ranges::find_if_not(out, [](float x) { return std::isfinite(x); });
  require(wrong == out.end(), Code::kInvalid, where, " holds ", wrong == out.end() ? 0 : *wrong,
          " at ", wrong - out.begin(), ", its numbers must be finite");
  return out;
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t size : shape) out += (out.empty() ? "[" : ", ") + std::to_string(size);
  return out + "]";
}

// [N], or, of cross_entropy's targets, [N, K].
const Tensor& targets_of(const tinker::Datum& datum, const std::string& where) {
  const auto found = datum.loss_fn_inputs.find("target_tokens");
  require(found != datum.loss_fn_inputs.end(), Code::kInvalid, where, " has no target_tokens");
  const std::vector<int64_t>& shape = found->second.shape;
  require(shape[0] == std::ssize(datum.tokens) && (shape.size() == 1 || shape[1] > 0),
          Code::kInvalid, where, ".target_tokens has the shape ", text_of(shape),
          ", model_input has ", datum.tokens.size(),
          " tokens: it must have one for each, or, of cross_entropy, a row for each");
  return found->second;
}

std::vector<int32_t> labels_of(const Tensor& targets, const std::string& where) {
  require(std::holds_alternative<std::vector<int64_t>>(targets.values), Code::kInvalid, where,
          ".target_tokens must be int64");
  return tinker::cells_of<int32_t>(targets, [&](auto id) {
    require(std::in_range<int32_t>(static_cast<int64_t>(id)) && id >= 0, Code::kInvalid, where,
            ".target_tokens holds ", id, ", it must be a token");
    return static_cast<int32_t>(id);
  });
}

// 0: one a token, in one dimension.
int64_t width_of(const tinker::Datum& datum) {
  const std::vector<int64_t>& shape = datum.loss_fn_inputs.at("target_tokens").shape;
  return shape.size() == 1 ? 0 : shape[1];
}

// Tinker's losses of sampled rows do not read weights; cross_entropy and Twinkle's own losses do.
bool reads_weights(std::string_view loss) {
  constexpr std::array<std::string_view, 5> kTinkers = {"importance_sampling", "ppo", "cispo",
                                                        "dro", "gspo"};
  return std::ranges::find(kTinkers, loss) == kTinkers.end();
}

engine::Example example(const tinker::Datum& datum, const std::string& loss, size_t number) {
  const std::string where = "server: data[" + std::to_string(number) + "]";
  const Tensor& targets = targets_of(datum, where);
  engine::Example out{.input_ids = datum.tokens, .labels = labels_of(targets, where)};
  out.num_targets = static_cast<int32_t>(std::max<int64_t>(1, width_of(datum)));
  require(!reads_weights(loss) || !datum.loss_fn_inputs.contains("weights") ||
              !datum.loss_fn_inputs.contains("mask"),
          Code::kInvalid, where, " has weights and mask, which mean the same; give one of them");
  const std::vector<int64_t> of_tokens{std::ssize(datum.tokens)}, of_datum{1};
  for (const auto& [name, tensor] : datum.loss_fn_inputs) {
    if (name == "target_tokens") continue;
    const bool weights = name == "weights" || name == "mask";
    const std::vector<int64_t>& shape = weights ? targets.shape : of_tokens;
    // One number of a whole datum, as some losses read: the engine knows which.
    require(tensor.shape == shape || (!weights && tensor.shape == of_datum), Code::kInvalid, where,
            ".", name, " has the shape ", text_of(tensor.shape), ", it must be ", text_of(shape));
    if (!weights)
      out.extras[name] = floats(tensor, where + "." + name);
    else if (reads_weights(loss))
      out.weights = floats(tensor, where + "." + name);
  }
  return out;
}

std::string options_of(const tinker::LossConfig& config) {
  JsonObject out;
  for (const auto& [name, value] : config) {
    const auto* number = std::get_if<double>(&value);
    require(!number || std::isfinite(*number), Code::kInvalid, "server: loss_fn_config.", name,
            " is ", number ? *number : 0, ", it must be finite");
    std::visit([&](const auto& v) { out[name] = v; }, value);
  }
  return out.empty() ? "" : boost::json::serialize(out);
}

// What the engine would find when the request's turn comes, by the names of the wire.
void require_inputs(const tinker::ForwardBackwardRequest& request) {
  if (request.loss_fn == "cross_entropy")
    for (const auto& [name, value] : request.loss_fn_config)
      require(name == "reduction", Code::kInvalid, "server: loss_fn_config has '", name,
              "'; cross_entropy takes reduction alone, the text sum or mean");
  if (reads_weights(request.loss_fn)) return;
  for (size_t i = 0; i < request.data.size(); ++i)
    for (const char* name : {"logprobs", "advantages"})
      require(request.data[i].loss_fn_inputs.contains(name) || width_of(request.data[i]) > 0,
              Code::kInvalid, "server: data[", i, "] has no ", name, ", which ", request.loss_fn,
              " reads");
}

// Tinker's formula is not public. With the option what clients ask for by default runs.
void require_known(const tinker::ForwardBackwardRequest& request, const Services& services) {
  require(!request.stable_reinforce || services.stable_reinforce != kRefused, Code::kInvalid,
          "server: loss_fn is stable_reinforce, which only Tinker has; ask for "
          "importance_sampling, or have the server started with --stable-reinforce "
          "importance_sampling, which computes that in its place");
}

// A short sparse tensor may name a shape that fills the memory; the thread that serves fills it,
// and makes the result: 4 bytes for each cell of target_tokens. `weights` has no more cells than
// these.
void require_result_fits(const tinker::ForwardBackwardRequest& request, int64_t most) {
  int64_t bytes = 0;
  for (size_t i = 0; i < request.data.size(); ++i) {
    const auto targets = request.data[i].loss_fn_inputs.find("target_tokens");
    if (targets == request.data[i].loss_fn_inputs.end()) continue;
    bytes += 4 * targets->second.num_cells();
    require(bytes <= most, Code::kInvalid, "server: data[", i, "].target_tokens has the shape ",
            text_of(targets->second.shape), ", with which the result has ", bytes,
            " bytes or more: 4 for each target of a token, also where a sparse tensor lists none; "
            "max_forward_backward_bytes is ",
            most, "; send less data, or fewer targets of a token, in one request");
  }
}

// widths: of each datum's targets.
Response output(const engine::ForwardResult& result, const std::vector<int64_t>& widths) {
  tinker::ForwardBackwardOutput out;
  for (size_t i = 0; i < result.logps.size(); ++i)
    out.data.push_back({{"logprobs", {result.logps[i], widths[i]}}});
  out.metrics["loss:sum"] = result.loss;
  return {.body = to_protobuf(out), .content_type = "application/x-protobuf"};
}

tinker::ForwardBackwardRequest read(std::string_view body) {
  tinker::ForwardBackwardRequest out = tinker::read_forward_backward(body);
  tinker::translate(out);
  return out;
}

// One that cannot be read uses its number up, too: what follows it must not wait for it.
tinker::ForwardBackwardRequest read(const Call& call, Run& run) {
  try {
    call.require_allowed();
    return read(call.request.body);
  } catch (const Error& e) {
    const tinker::Address to = tinker::address_of(call.request.body);
    call.services.runs.refuse(run, to.seq_id, e.what(), !to.forward_only);
    throw;
  }
}

engine::Operation forward_of(engine::ForwardBackward op, bool disable_lora) {
  return engine::Forward{.tenant = std::move(op.tenant),
                         .sequences = std::move(op.sequences),
                         .disable_lora = disable_lora,
                         .loss = std::move(op.loss),
                         .loss_options = std::move(op.loss_options)};
}

Ready ready_of(const tinker::ForwardBackwardRequest& request, const std::string& tenant) {
  require(!request.loss_fn.empty(), Code::kInvalid,
          "server: loss_fn is missing; give a loss, such as cross_entropy");
  engine::ForwardBackward op{.tenant = tenant, .loss = request.loss_fn};
  op.loss_options = options_of(request.loss_fn_config);
  std::vector<int64_t> widths;
  for (size_t i = 0; i < request.data.size(); ++i) {
    op.sequences.push_back(example(request.data[i], request.loss_fn, i));
    widths.push_back(width_of(request.data[i]));
  }
  const auto answer = [widths = std::move(widths)](const engine::Result& result) {
    return output(std::get<engine::ForwardResult>(result), widths);
  };
  if (request.forward_only) return {forward_of(std::move(op), request.disable_lora), answer};
  return {std::move(op), answer};
}

}  // namespace

std::optional<Response> create_model(Call& call) {
  Services& s = call.services;
  Session& session = call.session();
  const auto seq = get<int64_t>(call.body, "model_seq_id");
  const std::string id = run_id(session, seq);
  if (const auto known = session.runs.find(seq); known != session.runs.end())
    return json({{"request_id", known->second}, {"model_id", id}});
  call.open_session();
  call.require_allowed();
  call.require_number("model_seq_id", seq);
  const auto base = get<std::string>(call.body, "base_model");
  s.require_model(base);
  require_adamw(call.body);
  const Json* config = find(call.body, "lora_config");
  require(config, Code::kInvalid,
          "server: lora_config is missing; this server trains LoRA adapters, not all weights");
  const auto rank = get<int64_t>(*config, "rank");
  require(rank >= 1 && rank <= kMaxRank, Code::kInvalid, "server: lora_config.rank is ", rank,
          ", it must be from 1 to ", kMaxRank);
  Run run{.id = id,
          .owner = call.owner,
          .base_model = base,
          .rank = rank,
          .key_id = call.key_id,
          .last_ms = call.time_ms};
  JsonArray targets;
  for (const auto& [group, modules] : tinker::module_groups()) {
    run.trains[group] = get_or(*config, group, true);
    if (!run.trains[group]) continue;
    for (const char* name : modules) targets.push_back(name);
  }
  require(
      !targets.empty(), Code::kInvalid,
      "server: train_attn, train_mlp and train_unembed are all false: nothing would be trained");
  const JsonObject lora{
      {"r", rank}, {"lora_alpha", kLoraAlpha}, {"target_modules", std::move(targets)}};
  engine::Create create = s.standing({.tenant = id, .lora_json = boost::json::serialize(lora)},
                                     call.owner, call.key_id);
  create.seed = get_or<int64_t>(*config, "seed", 0);
  const std::string request_id = id + ":0";
  s.decisions.decide([&] {
    s.backend.validate(create);
    require_fits(s.backend, run);
    s.promises.require_room(call.owner);
  });
  const Answered answer = [id](const engine::Result&) {
    return json({{"model_id", id}, {"type", "create_model"}});
  };
  const auto first = std::make_shared<Pending>(request_id, Ready{std::move(create), answer});
  const Response told = json(ack(run, request_id));
  s.decisions.change([&] {
    s.promises.open(request_id, call.owner, call.key_id);
    session.runs[seq] = request_id;
    s.runs.submit_first(s.runs.add(std::move(run)), first);
  });
  return told;
}

std::optional<Response> get_info(Call& call) {
  const Run& run = call.run();
  const ModelFacts& model = call.services.backend.model();
  return json({{"type", "get_info"},
               {"model_id", run.id},
               {"model_data", {{"arch", model.architecture}, {"model_name", run.base_model}}},
               {"is_lora", true},
               {"lora_rank", run.rank},
               {"model_name", run.base_model}});
}

std::optional<Response> get_training_run(Call& call) {
  const Run& run = call.run();
  return json({{"training_run_id", run.id},
               {"base_model", run.base_model},
               {"model_owner", run.owner},
               {"is_lora", true},
               {"lora_rank", run.rank},
               {"corrupted", call.services.operations.lost().contains(run.id)},
               {"last_request_time", utc(run.last_ms)}});
}

std::optional<Response> forward_backward(Call& call) {
  Run& run = call.run();
  Services& s = call.services;
  const tinker::ForwardBackwardRequest request = read(call, run);
  Ready ready;
  if (!run.came(request.seq_id) || s.decisions.is_decided()) try {
      s.decisions.decide([&] {
        require_known(request, s);
        require_result_fits(request, s.promises.max_training_bytes());
      });
      ready = ready_of(request, run.id);
      if (!run.came(request.seq_id))  // what a journal holds was decided on before
        s.decisions.decide([&] { require_inputs(request); });
    } catch (const Error& e) {
      s.runs.refuse(run, request.seq_id, e.what(), !request.forward_only);
      throw;
    }
  const int64_t bytes = engine::num_bytes(ready.operation);
  const Source source{
      .sequence = call.sequence,
      .bytes = std::max<int64_t>(std::ssize(call.request.body), bytes),
      .make = [id = run.id](const Command& command) { return ready_of(read(command.body), id); }};
  return json(ack(run, s.runs.submit(run, {request.seq_id, call.key_id, call.time_ms},
                                     std::move(ready), source)));
}

namespace {

constexpr double kMostRate = std::numeric_limits<float>::max();

// The SDK's null is NaN.
double number(const Json& object, std::string_view key, double fallback) {
  return object.is_object() && object.get_object().contains(key) ? get<double>(object, key)
                                                                 : fallback;
}

// By the SDK's name, which may not be the optimizer's.
double checked(std::string_view name, double value, double below) {
  require(value >= 0 && value < below, Code::kInvalid, "server: ", name, " is ", value,
          ", it must be at least 0 and below ", below);
  return value;
}

Response step_answer(const engine::Result& r) {
  const auto& result = std::get<engine::StepResult>(r);
  return json({{"metrics",
                {{"unclipped_grad_l2:mean", result.grad_norm},
                 {"step", static_cast<double>(result.step)}}}});
}

}  // namespace

std::optional<Response> optim_step(Call& call) {
  Run& run = call.run();
  const auto seq_id = get<int64_t>(call.body, "seq_id");
  engine::Step step{.tenant = run.id, .divide = false, .none_is_zero = true};
  try {
    call.require_allowed();
    const Json* adam = find(call.body, "adam_params");
    require(adam, Code::kInvalid, "server: adam_params is missing; adamw is the optimizer here");
    step.options = boost::json::serialize(JsonObject{
        {"lr", checked("learning_rate", get<double>(*adam, "learning_rate"), kMostRate)},
        {"betas", JsonArray{checked("beta1", number(*adam, "beta1", 0.9), 1),
                            checked("beta2", number(*adam, "beta2", 0.95), 1)}},
        {"eps", checked("eps", number(*adam, "eps", 1e-12), kMostRate)},
        {"weight_decay", checked("weight_decay", number(*adam, "weight_decay", 0.0), kMostRate)}});
    step.max_grad_norm = std::max(0.0, number(*adam, "grad_clip_norm", 0.0));
  } catch (const Error& e) {
    // It has taken nothing: its window goes on to the next.
    call.services.runs.refuse(run, seq_id, e.what(), false);
    throw;
  }
  return json(ack(run, call.services.runs.submit(run, {seq_id, call.key_id, call.time_ms},
                                                 {std::move(step), step_answer})));
}

}  // namespace twinkle::server
