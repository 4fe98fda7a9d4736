#include "twinkle/cli/chat/conversation.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/engine/stream/token_queue.h"
#include "twinkle/text/stream/pieces.h"

namespace twinkle::cli {
namespace {

constexpr double kPoll = 0.05;  // seconds between two questions whether to stop

JsonObject message_of(std::string_view role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

}  // namespace

Conversation::Conversation(engine::Engine& engine, const text::Template& tmpl,
                           sampler::SamplingParams params, int64_t kv_tokens)
    : engine_(engine),
      template_(tmpl),
      params_(std::move(params)),
      limit_(std::min(engine.model_info().max_positions, kv_tokens)),
      limit_is_cache_(limit_ < engine.model_info().max_positions) {}

engine::Sample Conversation::sample_of(const std::string& question) const {
  JsonArray messages = messages_;
  messages.push_back(message_of("user", question));
  const auto feature = template_.encode(JsonObject{{"messages", std::move(messages)}}, true).at(0);
  const int64_t length = feature.length();
  require(length < limit_, Code::kInvalid, "cli: the chat has ", length, " tokens, ",
          limit_is_cache_ ? "--kv-tokens is " : "the model's context is ", limit_,
          "; /reset begins a new chat", limit_is_cache_ ? ", or start with more --kv-tokens" : "");
  engine::Sample out{.tenant = tenant_,
                     .prompts = {{feature.input_ids.begin(), feature.input_ids.end()}},
                     .params = {params_},
                     .tokenizer = template_.tokenizer().directory().string()};
  out.params[0].max_tokens = std::min(params_.max_tokens, limit_ - length);
  return out;
}

Answer Conversation::ask(const std::string& question, const Listener& listener) {
  const auto begin = std::chrono::steady_clock::now();
  const auto queue = std::make_shared<engine::TokenQueue>();
  engine::Future future =
      engine_.submit(sample_of(question), {engine::TokenQueue::listener(queue)});
  text::TextPieces pieces(
      [this](std::span<const int64_t> ids) { return template_.decode(ids, true); });
  std::vector<engine::TokenEvent> events;
  Answer answer;
  bool cancelled = false, ended = false;
  while (!ended) {
    events.clear();
    ended = queue->take(kPoll, events);
    if (!events.empty()) {
      answer.cut = events.back().stop_reason == "length";
      std::string piece;
      for (const engine::TokenEvent& event : events) piece += pieces.add(event.token);
      listener.show(piece);
    }
    if (!ended && !cancelled && listener.stopped()) cancelled = engine_.cancel(future.id);
  }
  if (!cancelled) future.get();  // its error, if it failed
  listener.show(pieces.rest());
  answer.text = pieces.text();
  answer.num_tokens = pieces.num_tokens();
  answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (cancelled && answer.text.empty()) return answer;
  messages_.push_back(message_of("user", question));
  messages_.push_back(message_of("assistant", answer.text));
  return answer;
}

}  // namespace twinkle::cli
