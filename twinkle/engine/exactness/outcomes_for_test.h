// For tests: what an operation returned as text, doubles and floats by their bits, so that two
// runs are compared whole; and a model so small that thousands of operations take seconds.
#pragma once
#include <cstring>
#include <functional>
#include <future>
#include <new>
#include <sstream>
#include <string>

#include "twinkle/base/error.h"
#include "twinkle/engine/operations_for_test.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {

inline JsonObject smallest_config(const std::string& family = "llama", bool tied = true) {
  JsonObject c = model::tiny_config(family);
  c["vocab_size"] = 41;
  c["hidden_size"] = 16;
  c["num_hidden_layers"] = 1;
  c["intermediate_size"] = 24;
  c["num_attention_heads"] = 2;
  c["num_key_value_heads"] = 1;
  c["head_dim"] = 8;
  c["tie_word_embeddings"] = tied;
  return c;
}

class OutcomeText {
 public:
  std::string of(const Result& result) {
    std::visit([this](const auto& r) { add(r); }, result);
    return out_.str();
  }

 private:
  void add(double x) {
    uint64_t bits = 0;
    std::memcpy(&bits, &x, 8);
    out_ << std::hex << bits << ' ';
  }
  void add(const std::vector<std::vector<float>>& rows) {
    out_ << rows.size() << ' ';
    for (const auto& row : rows) {
      for (const float x : row) add(static_cast<double>(x));
      out_ << '\n';
    }
  }
  void add(const Done&) { out_ << "done"; }
  void add(const ForwardResult& r) {
    out_ << "forward ";
    add(r.loss);
    add(r.num_tokens);
    add(r.logps);
    add(r.entropies);
    add(r.logits);
    add(r.embeddings);
    add(r.label_logits);
  }
  void add(const StepResult& r) {
    out_ << "step " << r.step << ' ';
    add(r.grad_norm);
    add(r.num_tokens);
  }
  void add(const std::vector<sampler::TopLogprobs>& rows) {
    for (const auto& row : rows) {
      for (const auto& [id, logprob] : row) {
        out_ << id << ':';
        add(static_cast<double>(logprob));
      }
      out_ << ';';
    }
  }
  void add(const SampleResult& r) {
    out_ << "sample ";
    for (const auto& prompt : r.completions) {
      for (const Completion& c : prompt) {
        for (const int32_t token : c.tokens) out_ << token << ',';
        add({c.logprobs});
        add(c.top_logprobs);
        out_ << c.stop_reason << ' ' << c.matched << '\n';
      }
    }
    for (const sampler::PromptScores& prompt : r.prompts) {
      add({prompt.logprobs});
      add(prompt.top_logprobs);
      add({prompt.alt_tokens});
      add({prompt.target_logprobs});
    }
  }
  void add(const SaveResult&) { out_ << "saved"; }  // where differs from run to run
  void add(const LoadResult& r) { out_ << "loaded " << r.extra_json; }
  void add(const InspectResult& r) {
    out_ << "state " << r.weights << ' ' << r.gradients << ' ' << r.optimizer << ' '
         << r.num_parameters << ' ' << r.step << ' ';
    add(r.num_tokens);
    for (const NamedTensor& t : r.tensors) {
      out_ << t.name << ' ';
      for (const int64_t n : t.shape) out_ << n << ' ';
      add({t.values});
    }
  }
  void add(const PublishResult& r) { out_ << "published " << r.version; }

  std::ostringstream out_;
};

// The result, which `look` sees too, or the error's text.
inline std::string outcome_of(std::future<Result>& future,
                              const std::function<void(const Result&)>& look = {}) {
  try {
    const Result result = future.get();
    if (look) look(result);
    return OutcomeText().of(result);
  } catch (const Error& e) {
    return e.what();
  } catch (const std::bad_alloc&) {
    return "no memory";
  }
}

// Token ids as text, for stop strings: letters, each token one.
inline std::string letters(std::span<const int32_t> ids) {
  std::string text;
  for (const int32_t id : ids) text += static_cast<char>('a' + id % 26);
  return text;
}
inline Decode in_letters(const std::string&) { return letters; }

}  // namespace twinkle::engine
