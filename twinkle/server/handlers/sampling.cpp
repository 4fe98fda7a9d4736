// Samplers and their requests.
#include <algorithm>
#include <cmath>

#include "twinkle/base/error.h"
#include "twinkle/server/handlers/prompt_scores.h"
#include "twinkle/server/routes.h"
#include "twinkle/server/tinker/results.h"

namespace twinkle::server {
namespace {

constexpr int64_t kMaxSamples = 1024;  // of one request

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

Response answer_of(const engine::Result& r, int64_t top, const PromptScoring& scoring) {
  const auto& result = std::get<engine::SampleResult>(r);
  tinker::SampleResponse out;
  for (const engine::Completion& c : result.completions.at(0)) {
    auto& s = out.sequences.emplace_back();
    s = {.tokens = c.tokens, .logprobs = c.logprobs, .at_length = c.stop_reason == "length"};
    if (top > 0) s.top = top_of(c.top_logprobs, top, std::ssize(c.top_logprobs));
  }
  scoring.answer(result.prompts.at(0), out);
  return {.body = tinker::to_protobuf(out), .content_type = "application/x-protobuf"};
}

// The thread that serves makes the whole of it at once. Each token is 4 bytes and has a
// log-probability of 4; so has each of the likeliest beside it. `prompt_bytes`: of the prompt's
// scores.
void require_result_fits(const engine::Sample& sample, int64_t prompt_bytes,
                         const Services& services) {
  const engine::SamplingParams& params = sample.params[0];
  const int64_t length = std::ssize(sample.prompts[0]);
  const int64_t room = std::max<int64_t>(0, services.backend.model().max_positions - length);
  const int64_t tokens = std::clamp<int64_t>(params.max_tokens, 0, room);
  const int64_t bytes = params.num_samples * tokens * 8 * (1 + params.top_logprobs) + prompt_bytes;
  const int64_t most = services.promises.max_sample_bytes();
  require(bytes <= most, Code::kInvalid, "server: num_samples ", params.num_samples,
          ", max_tokens ", tokens, " and topk_sample_logprobs ", params.top_logprobs,
          prompt_bytes > 0 ? ", with " + std::to_string(prompt_bytes) +
                                 " bytes of the prompt's log-probabilities,"
                           : "",
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

// What is sampled, as the sampler was when the request came.
struct Of {
  std::string tenant;
  int64_t version = 0;
};

struct Made {
  Ready ready;
  int64_t prompt_bytes;  // its scores take these in the result
};

Made read_sample(const Json& body, const Of& of, const std::string& chance,
                 const ModelFacts& model) {
  const Json* sampling = find(body, "sampling_params");
  const Json none = JsonObject{};
  if (!sampling) sampling = &none;
  engine::Sample sample{.tenant = of.tenant, .params = {{}}, .version = of.version};
  sample.prompts.push_back(prompt_of(body));
  engine::SamplingParams& params = sample.params[0];
  params.num_samples = num_samples_of(body);
  // At least 1: the engine refuses a prompt that leaves no room, however many are asked for.
  const int64_t room = std::max<int64_t>(1, model.max_positions - std::ssize(sample.prompts[0]));
  params.max_tokens = get_or(*sampling, "max_tokens", room);
  params.seed = find(*sampling, "seed") ? static_cast<uint64_t>(get<int64_t>(*sampling, "seed"))
                                        : std::stoull(chance.substr(0, 16), nullptr, 16);
  params.temperature = get_or(*sampling, "temperature", 1.0);
  params.top_k = get_or<int64_t>(*sampling, "top_k", -1);
  params.top_p = get_or(*sampling, "top_p", 1.0);
  params.top_logprobs = read_top(body, "topk_sample_logprobs");
  PromptScoring scoring(body, {std::ssize(sample.prompts[0]), model.vocab_size}, params);
  read_stop(*sampling, sample, model.directory);
  const int64_t prompt_bytes = scoring.num_bytes();
  auto answer = [top = params.top_logprobs, scoring = std::move(scoring)](const engine::Result& r) {
    return answer_of(r, top, scoring);
  };
  return {{std::move(sample), std::move(answer)}, prompt_bytes};
}

}  // namespace

std::optional<Response> create_sampling_session(Call& call) {
  Services& s = call.services;
  Session& session = call.session();
  const auto seq = get<int64_t>(call.body, "sampling_session_seq_id");
  if (const auto known = session.samplers.find(seq); known != session.samplers.end())
    return json({{"sampling_session_id", known->second}});
  call.require_allowed();
  call.require_number("sampling_session_seq_id", seq);
  Sampler sampler{.id = session.id + ":sample:" + std::to_string(seq), .owner = call.owner};
  sampler.model_path = get_or<std::string>(call.body, "model_path", "");
  if (sampler.model_path.empty()) {
    require(!find(call.body, "model_path") || find(call.body, "base_model"), Code::kInvalid,
            "server: model_path is empty; give tinker://RUN/sampler_weights/NAME, or base_model");
    sampler.base_model = get<std::string>(call.body, "base_model");
    s.require_model(sampler.base_model);
    sampler.tenant = s.tenant_of_base(call.owner);
  } else {
    const Checkpoint& checkpoint = *call.touched.checkpoint;
    sampler.base_model = checkpoint.base_model;
    sampler.tenant = s.tenant_of(checkpoint.folder, call.owner);
  }
  s.decisions.decide([&] {
    s.kept.require_room(Kept::What::kSampler, call.owner);
    s.make(sampler.tenant);
  });
  const Response told = json({{"sampling_session_id", sampler.id}});
  s.decisions.change([&] {
    session.samplers[seq] = sampler.id;
    s.add(std::move(sampler));
  });
  return told;
}

std::optional<Response> get_sampler(Call& call) {
  const Sampler& sampler = call.sampler();
  JsonObject out{{"sampler_id", sampler.id}, {"base_model", sampler.base_model}};
  if (!sampler.model_path.empty()) out["model_path"] = sampler.model_path;
  return json(out);
}

namespace {

Response told_of(const std::string& request_id, int64_t num_samples) {
  JsonArray sequences;
  for (int64_t i = 0; i < num_samples; ++i)
    sequences.push_back(Json(request_id + ":" + std::to_string(i)));
  return json({{"request_id", request_id}, {"sample_sequence_ids", std::move(sequences)}});
}

}  // namespace

std::optional<Response> asample(Call& call) {
  Services& s = call.services;
  Sampler& sampler = call.sampler();
  const auto seq = get<int64_t>(call.body, "seq_id");
  const int64_t num_samples = num_samples_of(call.body);
  const std::string request_id = sampler.id + ":" + std::to_string(seq);
  if (sampler.came.contains(seq) && !s.promises.is_carried(request_id)) {
    const auto* first = s.promises.find(request_id);  // null: its result is gone, too
    return told_of(request_id, first && first->num_samples > 0 ? first->num_samples : num_samples);
  }

  call.require_allowed();
  call.require_number("seq_id", seq);
  const Of of{sampler.tenant, sampler.version};
  const Source source{
      .sequence = call.sequence,
      .bytes = std::ssize(call.request.body),
      .make = [&model = s.backend.model(), of](const Command& command) {
        return read_sample(parse_json(command.body, "the body"), of, command.chance, model).ready;
      }};
  s.decisions.decide([&] {
    const Json* sampling = find(call.body, "sampling_params");
    require(!sampling || sampling->is_object(), Code::kInvalid,
            "server: sampling_params must be an object, such as {\"max_tokens\": 16}");
  });
  auto [ready, prompt_bytes] = read_sample(call.body, of, call.chance, s.backend.model());
  s.decisions.decide([&] {
    const auto& sample = std::get<engine::Sample>(ready.operation);
    require_result_fits(sample, prompt_bytes, s);
    require_few_stops(sample);
  });
  try {
    s.sample(call.owner, call.key_id,
             std::make_shared<Pending>(request_id, std::move(ready), source));
  } catch (const Error& e) {
    if (e.code == Code::kBusy) return refusal(429, e.what());  // the SDK's flow control
    throw;
  }
  s.decisions.change([&] {
    sampler.came.insert(seq);
    s.promises.set_num_samples(request_id, num_samples);
  });
  return told_of(request_id, num_samples);
}

}  // namespace twinkle::server
