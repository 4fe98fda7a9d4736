// Answers in OpenAI's form: whole ones from results, and the events of streams from tokens as they
// come. Belongs to one request.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/engine/protocol/result.h"
#include "twinkle/engine/schedule/hooks.h"
#include "twinkle/server/openai/request.h"
#include "twinkle/server/openai/texts.h"

namespace twinkle::server::openai {

class Answer {
 public:
  using Prompts = std::vector<std::vector<int32_t>>;

  // `id`: 32 hexadecimal digits; `created`: seconds since 1970. `asked` outlives it, but for its
  // prompts and its conversation.
  Answer(const Asked& asked, std::shared_ptr<const Texts> texts, const std::string& id,
         int64_t created, const Prompts& prompts);

  // The body of an answer that is no stream.
  std::string whole(const engine::SampleResult& result, const Prompts& prompts) const;

  // Events of a stream: its first, those of tokens, and its last. May be "".
  std::string first() const;
  std::string chunks(std::span<const engine::TokenEvent> events);
  std::string last() const;

 private:
  struct Scored {  // a token with its log-probabilities; NaN: it has none
    int32_t token;
    float logprob;
    sampler::TopLogprobs top = {};
  };
  struct Choice {
    text::TextPieces pieces;
    size_t told = 0;                  // bytes of its text
    size_t offset = 0;                // characters of the tokens that were told
    std::vector<Scored> scored = {};  // and not told
    std::string reason = {};          // why it ended, or ""
  };

  JsonObject head(const char* chunk) const;
  Json usage(int64_t num_generated) const;
  std::string event(Json choice) const;
  Json chunk_of(size_t index, Choice& choice) const;
  Json choice_of(size_t index, const engine::Completion& c, const std::vector<int32_t>& prompt,
                 const sampler::PromptScores& scores) const;
  Json calls_of(size_t index, const std::vector<text::ToolCall>& calls, bool numbered) const;
  Json logprobs_of(std::span<const Scored> scored, size_t& offset) const;
  std::string cut(std::string text, const std::string& reason) const;

  const Asked& asked_;
  const std::shared_ptr<const Texts> texts_;
  const std::string id_;
  const int64_t created_;
  int64_t num_prompt_ = 0, num_generated_ = 0;  // tokens
  std::map<size_t, Choice> choices_;            // a stream's, by index
};

}  // namespace twinkle::server::openai
