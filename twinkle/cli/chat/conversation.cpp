#include "twinkle/cli/chat/conversation.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/engine/stream/token_queue.h"

namespace twinkle::cli {
namespace {

constexpr double kPoll = 0.05;  // seconds between two questions whether to stop

// The text of tokens that come one by one. A character may have several tokens: until the last of
// them it is U+FFFD.
class Decoding {
 public:
  explicit Decoding(const text::Template& tmpl) : template_(tmpl) {}

  // The text that is new and will not change.
  std::string_view add(std::span<const engine::TokenEvent> events) {
    for (const engine::TokenEvent& event : events) ids_.push_back(event.token);
    text_ = template_.decode(ids_, true);
    size_t end = text_.size();
    while (end >= kUnknown.size() && text_.compare(end - kUnknown.size(), 3, kUnknown) == 0)
      end -= kUnknown.size();
    return shown(end);
  }
  std::string_view rest() { return shown(text_.size()); }

  const std::string& text() const { return text_; }
  int64_t num_tokens() const { return std::ssize(ids_); }

 private:
  static constexpr std::string_view kUnknown = "\xEF\xBF\xBD";

  std::string_view shown(size_t end) {
    const size_t begin = std::min(shown_, end);
    shown_ = std::max(shown_, end);
    return std::string_view(text_).substr(begin, end - begin);
  }

  const text::Template& template_;
  std::vector<int64_t> ids_;
  std::string text_;
  size_t shown_ = 0;  // bytes
};

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
  Decoding decoding(template_);
  std::vector<engine::TokenEvent> events;
  Answer answer;
  bool cancelled = false, ended = false;
  while (!ended) {
    events.clear();
    ended = queue->take(kPoll, events);
    if (!events.empty()) {
      answer.cut = events.back().stop_reason == "length";
      listener.show(decoding.add(events));
    }
    if (!ended && !cancelled && listener.stopped()) cancelled = engine_.cancel(future.id);
  }
  if (!cancelled) future.get();  // its error, if it failed
  listener.show(decoding.rest());
  answer.text = decoding.text();
  answer.num_tokens = decoding.num_tokens();
  answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (cancelled && answer.text.empty()) return answer;
  messages_.push_back(message_of("user", question));
  messages_.push_back(message_of("assistant", answer.text));
  return answer;
}

}  // namespace twinkle::cli
