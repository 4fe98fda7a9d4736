#include "twinkle/serving/tinker/answers.h"

#include <limits>
#include <variant>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"
#include "twinkle/server/tinker/fields.h"
#include "twinkle/server/tinker/results.h"
#include "twinkle/serving/api/call.h"
#include "twinkle/serving/tinker/routes.h"

namespace twinkle::server::tinker {
namespace {

TopTokens top_of(const std::vector<sampler::TopLogprobs>& rows, int64_t k) {
  TopTokens out{.k = k};
  for (const auto& row : rows) {
    auto& to = out.rows.emplace_back();
    for (const auto& t : row) to.emplace_back(t.id, t.logprob);
  }
  return out;
}

Response sampled(const engine::SampleResult& result, const Json& note) {
  const auto k = get_or<int64_t>(note, "k", 0);
  SampleResponse out;
  for (const engine::Completion& c : result.completions.at(0)) {
    auto& s = out.sequences.emplace_back();
    s = {.tokens = c.tokens, .logprobs = c.logprobs, .at_length = c.stop_reason == "length"};
    if (k > 0) s.top = top_of(c.top_logprobs, k);
  }
  if (get_or(note, "prompt", false)) {
    const std::vector<float>& scores = result.prompts.at(0).logprobs;  // the first token has none
    out.prompt_logprobs.emplace(1, std::numeric_limits<float>::quiet_NaN());
    out.prompt_logprobs->insert(out.prompt_logprobs->end(), scores.begin(), scores.end());
  }
  return {.body = to_protobuf(out), .content_type = "application/x-protobuf"};
}

Response trained(const engine::ForwardResult& result, const Json& note) {
  const Json* widths = find(note, "widths");
  ForwardBackwardOutput out;
  for (size_t i = 0; i < result.logps.size(); ++i) {
    const int64_t width = widths ? widths->get_array().at(i).to_number<int64_t>() : 0;
    out.data.push_back({{"logprobs", {result.logps[i], width}}});
  }
  out.metrics["loss:sum"] = result.loss;
  return {.body = to_protobuf(out), .content_type = "application/x-protobuf"};
}

Response stepped(const engine::StepResult& result) {
  return api::json({{"metrics",
                     {{"unclipped_grad_l2:mean", result.grad_norm},
                      {"step", static_cast<double>(result.step)}}}});
}

// checkpoint://RUN/KIND/NAME by Tinker's scheme.
std::string by_scheme(std::string text) {
  constexpr std::string_view kCore = "checkpoint://";
  for (size_t at = 0; (at = text.find(kCore, at)) != std::string::npos;)
    text.replace(at, kCore.size(), kScheme);
  return text;
}

}  // namespace

std::string note_of(const ForwardBackwardRequest& request) {
  JsonArray widths;
  bool has_several = false;
  for (const Datum& datum : request.data) {
    const auto targets = datum.loss_fn_inputs.find("target_tokens");
    const bool is_wide = targets != datum.loss_fn_inputs.end() && targets->second.shape.size() > 1;
    has_several |= is_wide;
    widths.push_back(is_wide ? targets->second.shape[1] : 0);
  }
  return has_several ? boost::json::serialize(JsonObject{{"widths", std::move(widths)}}) : "";
}

std::string note_of(const sampler::SamplingParams& params) {
  return boost::json::serialize(JsonObject{
      {"n", params.num_samples}, {"k", params.top_logprobs}, {"prompt", params.prompt_logprobs}});
}

int64_t num_samples_in(const std::string& note) {
  return get_or<int64_t>(parse_json(note, "server: a note"), "n", 1);
}

Response failure(const std::string& text, bool is_users) {
  return {.body = boost::json::serialize(
              JsonObject{{"error", readable(text)}, {"category", is_users ? "user" : "server"}})};
}

Response answer_of(const core::Future& future, const core::Ended& ended) {
  if (!ended.error.empty()) return failure(by_scheme(by_field(ended.error)), ended.is_users);
  const auto [of, seq_id] = core::parse_request_id(future.id);
  const std::string& note = future.note;
  if (note == "create_model") return api::json({{"model_id", of}, {"type", "create_model"}});
  if (note.starts_with("load_weights "))
    return api::json(
        {{"path", note.substr(note.find(' ') + 1)}, {"model_id", of}, {"type", "load_weights"}});
  if (note.starts_with("save ")) return api::json({{"path", kScheme + note.substr(5)}});
  if (note.starts_with("publish "))
    return api::json({{"sampling_session_id", note.substr(note.find(' ') + 1)}});
  const engine::Result result = engine::result_from_bytes(ended.result);
  if (const auto* step = std::get_if<engine::StepResult>(&result)) return stepped(*step);
  const Json parsed = note.empty() ? Json(JsonObject{}) : parse_json(note, "server: a note");
  if (const auto* sample = std::get_if<engine::SampleResult>(&result))
    return sampled(*sample, parsed);
  return trained(std::get<engine::ForwardResult>(result), parsed);
}

}  // namespace twinkle::server::tinker
