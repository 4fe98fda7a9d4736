// Training runs over Tinker's wire: their creation, forward_backward and optim_step.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "twinkle/base/error.h"
#include "twinkle/server/tinker/fields.h"
#include "twinkle/server/tinker/forward_backward_request.h"
#include "twinkle/server/tinker/modelscope.h"
#include "twinkle/server/tinker/modules.h"
#include "twinkle/serving/core/quotas.h"
#include "twinkle/serving/tinker/answers.h"
#include "twinkle/serving/tinker/routes.h"

namespace twinkle::server::tinker {
namespace {

constexpr int64_t kLoraAlpha = 32;  // Tinker's, whatever the rank
constexpr int64_t kMaxRank = 512;
constexpr double kMostRate = std::numeric_limits<float>::max();

std::vector<float> floats(const Tensor& tensor, const std::string& where) {
  auto out = cells_of<float>(tensor, [](auto value) { return static_cast<float>(value); });
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
const Tensor& targets_of(const Datum& datum, const std::string& where) {
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
  return cells_of<int32_t>(targets, [&](auto id) {
    require(std::in_range<int32_t>(static_cast<int64_t>(id)) && id >= 0, Code::kInvalid, where,
            ".target_tokens holds ", id, ", it must be a token");
    return static_cast<int32_t>(id);
  });
}

// 0: one a token, in one dimension.
int64_t width_of(const Datum& datum) {
  const std::vector<int64_t>& shape = datum.loss_fn_inputs.at("target_tokens").shape;
  return shape.size() == 1 ? 0 : shape[1];
}

// Tinker's losses of sampled rows do not read weights; cross_entropy and Twinkle's own losses do.
bool reads_weights(std::string_view loss) {
  constexpr std::array<std::string_view, 5> kTinkers = {"importance_sampling", "ppo", "cispo",
                                                        "dro", "gspo"};
  return std::ranges::find(kTinkers, loss) == kTinkers.end();
}

engine::Example example(const Datum& datum, const std::string& loss, size_t number) {
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

std::string options_of(const LossConfig& config) {
  JsonObject out;
  for (const auto& [name, value] : config) {
    const auto* number = std::get_if<double>(&value);
    require(!number || std::isfinite(*number), Code::kInvalid, "server: loss_fn_config.", name,
            " is ", number ? *number : 0, ", it must be finite");
    std::visit([&](const auto& v) { out[name] = v; }, value);
  }
  return out.empty() ? "" : boost::json::serialize(out);
}

// Finds what the engine would when the request's turn comes, by the names of the wire.
void require_inputs(const ForwardBackwardRequest& request) {
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

// A short sparse tensor may name a shape that fills the memory; the thread that serves fills it,
// and makes the result: 4 bytes for each cell of target_tokens. `weights` has no more cells than
// these.
void require_result_fits(const ForwardBackwardRequest& request, int64_t most) {
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

engine::Operation forward_of(engine::ForwardBackward op, bool disable_lora) {
  return engine::Forward{.tenant = std::move(op.tenant),
                         .sequences = std::move(op.sequences),
                         .disable_lora = disable_lora,
                         .loss = std::move(op.loss),
                         .loss_options = std::move(op.loss_options)};
}

engine::Operation operation_of(const ForwardBackwardRequest& request, int64_t most_bytes) {
  require_result_fits(request, most_bytes);
  require(!request.loss_fn.empty(), Code::kInvalid,
          "server: loss_fn is missing; give a loss, such as cross_entropy");
  engine::ForwardBackward op{.tenant = request.model_id, .loss = request.loss_fn};
  op.loss_options = options_of(request.loss_fn_config);
  for (size_t i = 0; i < request.data.size(); ++i)
    op.sequences.push_back(example(request.data[i], request.loss_fn, i));
  require_inputs(request);
  if (request.forward_only) return forward_of(std::move(op), request.disable_lora);
  return op;
}

// By the SDK's name, which may not be the optimizer's.
double checked(std::string_view name, double value, double below) {
  require(value >= 0 && value < below, Code::kInvalid, "server: ", name, " is ", value,
          ", it must be at least 0 and below ", below);
  return value;
}

// The SDK's null is NaN.
double number(const Json& object, std::string_view key, double fallback) {
  return object.is_object() && object.get_object().contains(key) ? get<double>(object, key)
                                                                 : fallback;
}

engine::Operation step_of(const Json& body, const std::string& run) {
  const Json* adam = find(body, "adam_params");
  require(adam, Code::kInvalid, "server: adam_params is missing; adamw is the optimizer here");
  engine::Step step{.tenant = run, .divide = false, .none_is_zero = true};
  step.options = boost::json::serialize(JsonObject{
      {"lr", checked("learning_rate", get<double>(*adam, "learning_rate"), kMostRate)},
      {"betas", JsonArray{checked("beta1", number(*adam, "beta1", 0.9), 1),
                          checked("beta2", number(*adam, "beta2", 0.95), 1)}},
      {"eps", checked("eps", number(*adam, "eps", 1e-12), kMostRate)},
      {"weight_decay", checked("weight_decay", number(*adam, "weight_decay", 0.0), kMostRate)}});
  step.max_grad_norm = std::max(0.0, number(*adam, "grad_clip_norm", 0.0));
  return step;
}

// The adapter's modules, by its groups.
void read_groups(const Json& config, core::Run& run) {
  for (const auto& [group, modules] : module_groups()) {
    run.trains[group] = get_or(config, group, true);
    if (run.trains[group]) run.targets.insert(run.targets.end(), modules.begin(), modules.end());
  }
  require(
      !run.targets.empty(), Code::kInvalid,
      "server: train_attn, train_mlp and train_unembed are all false: nothing would be trained");
}

}  // namespace

Task<Response> create_model(api::Call& call) {
  const core::Session& session = call.session();
  const int64_t seq = call.integer("model_seq_id");
  if (const auto known = session.runs.find(seq); known != session.runs.end())
    co_return ack(known->second, 0);
  call.open_session();
  core::Run run = new_run(call, session, seq);
  run.base_model = get<std::string>(call.body, "base_model");
  require_model(call, run.base_model);
  require_adamw(call.body);
  const Json* config = find(call.body, "lora_config");
  require(config, Code::kInvalid,
          "server: lora_config is missing; this server trains LoRA adapters, not all weights");
  run.rank = get<int64_t>(*config, "rank");
  require(run.rank >= 1 && run.rank <= kMaxRank, Code::kInvalid, "server: lora_config.rank is ",
          run.rank, ", it must be from 1 to ", kMaxRank);
  read_groups(*config, run);
  const JsonObject lora{{"r", run.rank},
                        {"lora_alpha", kLoraAlpha},
                        {"target_modules", JsonArray(run.targets.begin(), run.targets.end())}};
  run.origin = {.lora_json = boost::json::serialize(lora),
                .seed = static_cast<uint64_t>(get_or<int64_t>(*config, "seed", 0))};
  const std::string id = run.id;
  core::CreateRun create{.number = seq, .run = std::move(run), .note = "create_model"};
  co_await call.core.create_run(std::move(create));
  co_return ack(id, 0);
}

Task<Response> get_info(api::Call& call) {
  const core::Run& run = call.run();
  const ModelFacts& model = call.core.backend().model();
  co_return api::json(
      {{"type", "get_info"},
       {"model_id", run.id},
       {"model_data", {{"arch", model.architecture}, {"model_name", run.base_model}}},
       {"is_lora", true},
       {"lora_rank", run.rank},
       {"model_name", run.base_model}});
}

Task<Response> forward_backward(api::Call& call) {
  const Address to = address_of(call.request.body);
  const core::Run& run = call.run(to.model_id);
  ForwardBackwardRequest request = read_forward_backward(call.request.body);
  translate(request);
  core::Numbered numbered{.run = run.id,
                          .seq_id = to.seq_id,
                          .key_id = call.caller.key_id,
                          .breaks_window = !to.forward_only,
                          .note = note_of(request)};
  const auto make = [&](const core::Run&) {
    return operation_of(request, call.service.results.max_training_bytes);
  };
  const std::string id = co_await call.core.submit(std::move(numbered), make);
  co_return ack(id);
}

Task<Response> optim_step(api::Call& call) {
  core::Numbered numbered = numbered_of(call, "step");
  const auto make = [&](const core::Run& run) { return step_of(call.body, run.id); };
  const std::string id = co_await call.core.submit(std::move(numbered), make);
  co_return ack(id);
}

}  // namespace twinkle::server::tinker
