// Samplers over Tinker's wire, and their requests.
#include <algorithm>
#include <cmath>
#include <limits>

#include "twinkle/base/error.h"
#include "twinkle/server/tinker/fields.h"
#include "twinkle/serving/core/quotas.h"
#include "twinkle/serving/tinker/answers.h"
#include "twinkle/serving/tinker/routes.h"

namespace twinkle::server::tinker {
namespace {

constexpr int64_t kMaxSamples = 1024;  // in one request

std::vector<int32_t> prompt_of(const Json& body) {
  const Json* prompt = find(body, "prompt");
  const Json* chunks = prompt ? find(*prompt, "chunks") : nullptr;
  require(chunks && chunks->is_array(), Code::kInvalid, "server: prompt.chunks is missing");
  std::vector<int32_t> out;
  for (const Json& chunk : chunks->get_array()) {
    const auto type = get_or<std::string>(chunk, "type", "encoded_text");
    const Json* tokens = find(chunk, "tokens");
    require(type == "encoded_text", Code::kInvalid, "server: prompt has a chunk of type '", type,
            "'; this server's models read encoded_text alone");
    require(tokens && tokens->is_array(), Code::kInvalid,
            "server: prompt has a chunk whose tokens are missing; give an array");
    for (const Json& token : tokens->get_array()) {
      require(
          token.is_int64() && token.get_int64() >= 0 && std::in_range<int32_t>(token.get_int64()),
          Code::kInvalid, "server: prompt.chunks has tokens with ", boost::json::serialize(token),
          ", each must be an id of a token");
      out.push_back(static_cast<int32_t>(token.get_int64()));
    }
  }
  return out;
}

// stop: nothing: the model's ends; []: nothing ends it; texts or tokens.
void read_stop(const Json& sampling, engine::Sample& sample, const std::string& tokenizer) {
  const Json* stop = find(sampling, "stop");
  if (!stop) return;
  engine::SamplingParams& params = sample.params[0];
  const JsonArray list = stop->is_array() ? stop->get_array() : JsonArray{*stop};
  params.ignore_eos = true;
  for (const Json& item : list) {
    if (item.is_string())
      params.stop.emplace_back(item.get_string());
    else if (item.is_int64() && std::in_range<int32_t>(item.get_int64()))
      params.stop_token_ids.push_back(static_cast<int32_t>(item.get_int64()));
    else
      fail(Code::kInvalid, "server: sampling_params.stop holds ", boost::json::serialize(item),
           ", it must be a text or a token");
  }
  if (!params.stop.empty()) sample.tokenizer = tokenizer;
}

// The thread that serves makes the whole of it at once. Each token is 4 bytes and has a
// log-probability of 4; so has each of the likeliest beside it.
void require_result_fits(const engine::Sample& sample, const api::Call& call) {
  const engine::SamplingParams& params = sample.params[0];
  const int64_t length = std::ssize(sample.prompts[0]);
  const int64_t room = std::max<int64_t>(0, call.core.backend().model().max_positions - length);
  const int64_t tokens = std::clamp<int64_t>(params.max_tokens, 0, room);
  const int64_t bytes = params.num_samples * tokens * 8 * (1 + params.top_logprobs) +
                        (params.prompt_logprobs ? 4 * length : 0);
  const int64_t most = call.service.results.max_sample_bytes;
  require(bytes <= most, Code::kInvalid, "server: num_samples ", params.num_samples,
          ", max_tokens ", tokens, " and topk_sample_logprobs ", params.top_logprobs,
          " may make a result of ", bytes, " bytes, but max_sample_bytes is ", most,
          "; ask for less in one request");
}

// The text of each sequence is searched for all of them behind each token, on the engine's thread.
void require_few_stops(const engine::Sample& sample) {
  const std::vector<std::string>& stop = sample.params[0].stop;
  require(stop.size() <= sampler::kMaxStops, Code::kInvalid, "server: sampling_params.stop has ",
          stop.size(), " texts, it must have at most ", sampler::kMaxStops);
  for (size_t i = 0; i < stop.size(); ++i)
    require(stop[i].size() <= sampler::kMaxStopBytes, Code::kInvalid,
            "server: sampling_params.stop[", i, "] has ", stop[i].size(),
            " bytes, it must have at most ", sampler::kMaxStopBytes);
}

int64_t num_samples_of(const Json& body) {
  const auto out = get_or<int64_t>(body, "num_samples", 1);
  require(out >= 1 && out <= kMaxSamples, Code::kInvalid, "server: num_samples is ", out,
          ", it must be from 1 to ", kMaxSamples);
  return out;
}

engine::Sample sample_of(const Json& body, const ModelFacts& model) {
  const Json* sampling = find(body, "sampling_params");
  const Json none = JsonObject{};
  if (!sampling) sampling = &none;
  for (const char* name : {"topk_prompt_logprobs", "prompt_alt_tokens_k"})
    require(get_or<int64_t>(body, name, 0) == 0, Code::kInvalid, "server: ", name,
            " is not there yet; leave it out");
  for (const char* name : {"target_prompt_logprobs", "prompt_logprobs_last_n"})
    require(!find(body, name), Code::kInvalid, "server: ", name, " is not there yet; leave it out");
  engine::Sample sample{.params = {{}}};
  sample.prompts.push_back(prompt_of(body));
  engine::SamplingParams& params = sample.params[0];
  params.num_samples = num_samples_of(body);
  // At least 1: the engine refuses a prompt that leaves no room, however many are asked for.
  const int64_t room = std::max<int64_t>(1, model.max_positions - std::ssize(sample.prompts[0]));
  params.max_tokens = get_or(*sampling, "max_tokens", room);
  params.seed = find(*sampling, "seed") ? static_cast<uint64_t>(get<int64_t>(*sampling, "seed"))
                                        : std::stoull(core::new_id().substr(0, 16), nullptr, 16);
  params.temperature = get_or(*sampling, "temperature", 1.0);
  params.top_k = get_or<int64_t>(*sampling, "top_k", -1);
  params.top_p = get_or(*sampling, "top_p", 1.0);
  params.prompt_logprobs = get_or(body, "prompt_logprobs", false);
  params.top_logprobs = get_or<int64_t>(body, "topk_sample_logprobs", 0);
  require(params.top_logprobs >= 0 && params.top_logprobs <= sampler::kMaxTopLogprobs,
          Code::kInvalid, "server: topk_sample_logprobs is ", params.top_logprobs,
          ", it must be from 0 to ", sampler::kMaxTopLogprobs);
  read_stop(*sampling, sample, model.directory);
  return sample;
}

}  // namespace

Task<Response> create_sampling_session(api::Call& call) {
  const core::Session& session = call.session();
  const int64_t seq = call.integer("sampling_session_seq_id");
  const auto known = [&, id = session.id]() -> const std::string* {
    return core::find(call.core.domain().session(id)->samplers, seq);
  };
  if (const auto* id = known()) co_return api::json({{"sampling_session_id", *id}});
  require_number("sampling_session_seq_id", seq);
  core::Sampler sampler{.id = session.id + ":sample:" + std::to_string(seq),
                        .owner = call.owner(),
                        .session = session.id};
  const std::string path = call.named("model_path");
  if (path.empty()) {
    require(!find(call.body, "model_path") || find(call.body, "base_model"), Code::kInvalid,
            "server: model_path is empty; give tinker://RUN/sampler_weights/NAME, or base_model");
    sampler.base_model = get<std::string>(call.body, "base_model");
    require_model(call, sampler.base_model);
  } else {
    const core::Checkpoint& of = checkpoint_of(call, "model_path");
    sampler.base_model = of.base_model;
    sampler.checkpoint = of.path;
    sampler.folder = of.folder;
  }
  core::require_sampler(call.core, call.owner());
  co_await call.core.prepare(sampler);
  if (const auto* id = known()) co_return api::json({{"sampling_session_id", *id}});
  const std::string id = sampler.id;
  core::OpenSampler open{.number = seq, .sampler = std::move(sampler)};
  co_await call.core.commit(std::move(open));
  co_return api::json({{"sampling_session_id", id}});
}

Task<Response> get_sampler(api::Call& call) {
  const core::Sampler& sampler = call.sampler();
  JsonObject out{{"sampler_id", sampler.id}, {"base_model", sampler.base_model}};
  if (!sampler.checkpoint.empty()) out["model_path"] = kScheme + sampler.checkpoint;
  co_return api::json(out);
}

Task<Response> asample(api::Call& call) {
  const std::string sampler = call.sampler().id;
  const int64_t seq = call.integer("seq_id");
  const std::string request_id = core::request_id(sampler, seq);
  core::Prompted prompted{.sampler = sampler, .seq_id = seq, .key_id = call.caller.key_id};
  int64_t num_samples = num_samples_of(call.body);
  const core::Future* const first = call.core.domain().future(request_id);
  if (first) {
    num_samples = num_samples_in(first->note);
  } else {
    require_number("seq_id", seq);
    const Json* sampling = find(call.body, "sampling_params");
    require(!sampling || sampling->is_object(), Code::kInvalid,
            "server: sampling_params must be an object, such as {\"max_tokens\": 16}");
    engine::Sample sample = sample_of(call.body, call.core.backend().model());
    require_result_fits(sample, call);
    require_few_stops(sample);
    prompted.note = note_of(sample.params[0]);
    try {
      co_await call.core.sample(std::move(prompted), std::move(sample));
    } catch (const Error& e) {
      if (e.code != Code::kBusy) throw Error(e.code, by_field(e.what()));
      prompted.note = e.what();
      num_samples = 0;
    }
    if (num_samples == 0) co_return refusal(429, prompted.note);  // the SDK's flow control
  }
  JsonArray sequences;
  for (int64_t i = 0; i < num_samples; ++i)
    sequences.push_back(Json(request_id + ":" + std::to_string(i)));
  co_return api::json({{"request_id", request_id}, {"sample_sequence_ids", std::move(sequences)}});
}

}  // namespace twinkle::server::tinker
