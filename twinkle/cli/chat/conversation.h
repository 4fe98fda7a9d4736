// A chat with one model: its messages so far, and the tenant that answers next. Knows no terminal.
// One thread.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "twinkle/engine/engine.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {

struct Answer {
  std::string text;
  int64_t num_tokens = 0;
  double seconds = 0;
  bool cut = false;  // by max_tokens or the end of the context, not by the model
};

// The asker of a question meanwhile: `show` gets the text in pieces as it comes; `stopped` is asked
// several times a second, and ends the answer where it is.
struct Listener {
  std::function<void(std::string_view piece)> show = [](std::string_view) {};
  std::function<bool()> stopped = [] { return false; };
};

class Conversation {
 public:
  // `max_tokens` of the parameters is cut to what the context has room for. The engine and the
  // template outlive it.
  Conversation(engine::Engine& engine, const text::Template& tmpl, sampler::SamplingParams params,
               int64_t kv_tokens);

  // The engine's tenant that answers from here on; the messages stay.
  void use(std::string tenant) { tenant_ = std::move(tenant); }
  const std::string& tenant() const { return tenant_; }
  void reset() { messages_.clear(); }
  const JsonArray& messages() const { return messages_; }

  // Adds the question and its answer to the messages; of an answer that was stopped what had come,
  // and nothing where that is nothing. Error kInvalid: the messages leave no room for an answer;
  // what the template and the engine refuse. The messages are then as they were.
  Answer ask(const std::string& question, const Listener& listener = {});

 private:
  engine::Sample sample_of(const std::string& question) const;

  engine::Engine& engine_;
  const text::Template& template_;
  const sampler::SamplingParams params_;
  const int64_t limit_;        // tokens of the messages and the answer
  const bool limit_is_cache_;  // that it is kv_tokens, which is less than the model's context
  std::string tenant_;
  JsonArray messages_;
};

}  // namespace twinkle::cli
