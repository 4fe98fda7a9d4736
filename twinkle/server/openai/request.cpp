#include "twinkle/server/openai/request.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/options.h"
#include "twinkle/server/openai/messages.h"

namespace twinkle::server::openai {
namespace {

constexpr int64_t kMaxChoices = 128;       // for a prompt
constexpr int64_t kMaxSequences = 1024;    // for a request
constexpr int64_t kMaxTop = 20;            // likeliest tokens
constexpr int64_t kCompletionTokens = 16;  // where max_tokens is not given

// Options that are read, or taken since they change no result ...
constexpr std::string_view kBoth =
    " model stream stream_options n stop seed temperature top_p top_k min_p repetition_penalty "
    "ignore_eos max_tokens logprobs user ";
constexpr std::string_view kChat =
    " messages tools tool_choice chat_template_kwargs max_completion_tokens top_logprobs metadata "
    "store service_tier safety_identifier prompt_cache_key prompt_cache_options "
    "prompt_cache_retention prediction ";
constexpr std::string_view kCompletion = " prompt echo ";

// ... and those that are not done: only these values, a list in JSON, leave the result as it is.
struct Refused {
  Form form;
  std::string_view name, neutral;
};
constexpr Form kAny{3};
constexpr std::array kRefused = {
    Refused{kAny, "frequency_penalty", "[0, 0.0]"},
    Refused{kAny, "presence_penalty", "[0, 0.0]"},
    Refused{kAny, "logit_bias", "[{}]"},
    Refused{Form::kChat, "parallel_tool_calls", "[true]"},
    Refused{Form::kChat, "response_format", R"([{"type": "text"}])"},
    Refused{Form::kChat, "modalities", R"([["text"]])"},
    Refused{Form::kChat, "verbosity", R"(["medium"])"},
    Refused{Form::kChat, "reasoning_effort", "[]"},
    Refused{Form::kChat, "web_search_options", "[]"},
    Refused{Form::kChat, "moderation", "[]"},
    Refused{Form::kChat, "audio", "[]"},
    Refused{Form::kChat, "functions", "[[]]"},
    Refused{Form::kChat, "function_call", R"(["none"])"},
    Refused{Form::kCompletion, "best_of", "[1]"},
    Refused{Form::kCompletion, "suffix", R"([""])"},
};

bool has_word(std::string_view words, std::string_view word) {
  return word.find(' ') == word.npos && words.find(" " + std::string(word) + " ") != words.npos;
}

std::string_view own_of(Form form) { return form == Form::kChat ? kChat : kCompletion; }

const char* path_of(Form form) {
  return form == Form::kChat ? "/v1/chat/completions" : "/v1/completions";
}

[[noreturn]] void refuse_unknown(const std::string& name, Form form) {
  std::istringstream words(std::string(kBoth) + std::string(own_of(form)));
  const std::vector<std::string> names(std::istream_iterator<std::string>(words), {});
  const std::string nearest = nearest_of(name, names);
  fail(Code::kInvalid, "openai: ", shown(name), " is no option of ", path_of(form),
       nearest.empty() ? "; leave it out" : "; did you mean " + nearest + "?");
}

void require_options(const JsonObject& body, Form form) {
  for (const auto& [key, value] : body) {
    const std::string name(key);
    if (value.is_null() || has_word(kBoth, name) || has_word(own_of(form), name)) continue;
    const auto refused = std::ranges::find(kRefused, name, &Refused::name);
    if (refused == kRefused.end() || (refused->form != kAny && refused->form != form))
      refuse_unknown(name, form);
    const JsonArray neutral = parse_json(refused->neutral, refused->name).as_array();
    require(std::ranges::find(neutral, value) != neutral.end(), Code::kInvalid, "openai: ", name,
            " is ", shown(value), ", which this server does not do; leave it out");
  }
}

int64_t number(const Json& body, const char* name, int64_t fallback, int64_t least, int64_t most) {
  const auto out = get_or<int64_t>(body, name, fallback);
  require(out == fallback || (out >= least && out <= most), Code::kInvalid, "openai: ", name,
          " is ", out, ", it must be from ", least, " to ", most);
  return out;
}

// One text, or a list of them.
void read_stop(const Json& body, engine::SamplingParams& params) {
  const Json* stop = find(body, "stop");
  if (!stop) return;
  const JsonArray list = stop->is_array() ? stop->get_array() : JsonArray{*stop};
  require(list.size() <= sampler::kMaxStops, Code::kInvalid, "openai: stop has ", list.size(),
          " texts, it must have at most ", sampler::kMaxStops);
  for (const Json& item : list) {
    require(item.is_string() && !item.get_string().empty() &&
                item.get_string().size() <= sampler::kMaxStopBytes,
            Code::kInvalid, "openai: stop holds ", shown(item), ", it must be a text of 1 to ",
            sampler::kMaxStopBytes, " bytes");
    params.stop.emplace_back(item.get_string());
  }
}

void read_logprobs(const Json& body, Asked& out) {
  const Json* top = find(body, out.form == Form::kChat ? "top_logprobs" : "logprobs");
  engine::SamplingParams& params = out.params;
  params.logprobs = out.form == Form::kChat ? get_or(body, "logprobs", false) : top != nullptr;
  if (out.form == Form::kChat && top)
    require(params.logprobs, Code::kInvalid,
            "openai: top_logprobs needs logprobs: true; give it, too");
  params.top_logprobs =
      number(body, out.form == Form::kChat ? "top_logprobs" : "logprobs", 0, 0, kMaxTop);
  if (!out.echo) return;
  params.prompt_logprobs = params.logprobs;
  params.top_prompt_logprobs = params.top_logprobs;
}

void read_stream(const Json& body, Asked& out) {
  out.stream = get_or(body, "stream", false);
  const Json* options = find(body, "stream_options");
  if (!options) return;
  require(out.stream && options->is_object(), Code::kInvalid, "openai: stream_options is ",
          shown(*options), ", it must be an object, with stream: true");
  out.include_usage = get_or(*options, "include_usage", false);
  for (const auto& [name, value] : options->get_object())
    require(name == "include_usage" || name == "include_obfuscation", Code::kInvalid,
            "openai: stream_options.", shown(std::string(name)), " is not known; leave it out");
}

void read_params(const Json& body, uint64_t seed, Asked& out) {
  engine::SamplingParams& params = out.params;
  params.num_samples = number(body, "n", 1, 1, kMaxChoices);
  params.seed = find(body, "seed") ? static_cast<uint64_t>(get<int64_t>(body, "seed")) : seed;
  params.temperature = get_or(body, "temperature", 1.0);
  params.top_p = get_or(body, "top_p", 1.0);
  const auto top_k = get_or<int64_t>(body, "top_k", -1);
  params.top_k = top_k == 0 ? -1 : top_k;
  params.min_p = get_or(body, "min_p", 0.0);
  params.repetition_penalty = get_or(body, "repetition_penalty", 1.0);
  params.ignore_eos = get_or(body, "ignore_eos", false);
  const char* const name =
      find(body, "max_completion_tokens") ? "max_completion_tokens" : "max_tokens";
  const int64_t least = out.form == Form::kChat || !out.echo ? 1 : 0;
  if (find(body, name))
    out.max_tokens = number(body, name, least, least, static_cast<int64_t>(kMostTokens));
  if (!out.max_tokens && out.form == Form::kCompletion) out.max_tokens = kCompletionTokens;
  read_stop(body, params);
  read_logprobs(body, out);
}

Prompt tokens_of(const JsonArray& list) {
  std::vector<int32_t> out;
  for (const Json& token : list) {
    require(token.is_int64() && std::in_range<int32_t>(token.get_int64()) && token.get_int64() >= 0,
            Code::kInvalid, "openai: prompt holds ", shown(token),
            ", it must be a text, a list of tokens, or a list of these");
    out.push_back(static_cast<int32_t>(token.get_int64()));
  }
  return out;
}

std::vector<Prompt> prompts_of(const Json& body) {
  const Json* given = find(body, "prompt");
  require(given != nullptr, Code::kInvalid, "openai: prompt is missing; give a text");
  if (given->is_string()) return {std::string(given->get_string())};
  require(given->is_array() && !given->get_array().empty(), Code::kInvalid, "openai: prompt is ",
          shown(*given), ", it must be a text, a list of tokens, or a list of these");
  const JsonArray& list = given->get_array();
  if (list[0].is_number()) return {tokens_of(list)};
  std::vector<Prompt> out;
  for (const Json& one : list)
    if (one.is_string())
      out.emplace_back(std::string(one.get_string()));
    else
      out.push_back(tokens_of(one.is_array() ? one.get_array() : JsonArray{one}));
  return out;
}

}  // namespace

bool is_field(std::string_view name) {
  return has_word(kBoth, name) || has_word(kChat, name) || has_word(kCompletion, name) ||
         std::ranges::find(kRefused, name, &Refused::name) != kRefused.end();
}

Asked read(const Json& body, Form form, uint64_t seed) {
  require(body.is_object(), Code::kInvalid, "openai: the body must be an object of JSON");
  require_options(body.get_object(), form);
  Asked out{.form = form, .model = get<std::string>(body, "model")};
  out.echo = get_or(body, "echo", false);
  read_stream(body, out);
  require(!out.stream || !out.echo, Code::kInvalid,
          "openai: echo is true, which a stream does not do; leave one of them out");
  read_params(body, seed, out);
  if (form == Form::kChat)
    out.conversation = conversation_of(body, out.has_tools);
  else
    out.prompts = prompts_of(body);
  const int64_t num = std::max<int64_t>(1, std::ssize(out.prompts)) * out.params.num_samples;
  require(num <= kMaxSequences, Code::kInvalid, "openai: prompt and n ask for ", num,
          " choices, a request may have ", kMaxSequences, "; send several");
  return out;
}

}  // namespace twinkle::server::openai
