// Measures of a model on a file of rows. Each takes an engine with the tenant kMeasured and knows
// no command line; progress goes to standard error.
#pragma once
#include <string>

#include "twinkle/base/json.h"
#include "twinkle/engine/engine.h"
#include "twinkle/text/template.h"

namespace twinkle::cli {

inline constexpr const char* kMeasured = "me";  // the engine's tenant

struct EvaluationInput {
  std::string model;       // path of the model, whose tokenizer it is
  std::string data;        // file of rows
  std::string system;      // system message; empty: the task's own
  int64_t limit = 0;       // rows; 0: all
  int64_t max_tokens = 0;  // longest answer
  int64_t max_length = 0;  // longest row or piece of a text, tokens; 0: the model's positions
  std::string columns;     // new names of columns, "question=prompt"
};

// The number of a reply to a GSM8K question: after its last "####", else in its last \boxed{},
// without commas, blanks, dollars and percent signs, and a full stop at its end; empty: there is
// none.
std::string gsm8k_answer(const std::string& reply);
// True of the same text, and of numbers that differ by less than 1e-5.
bool same_number(const std::string& a, const std::string& b);

// Greedy answers to questions; rows: {"question", "answer"}, which ends with "#### " and the
// number. The result has accuracy, stderr, correct, answered, num_rows, num_tokens, and of each row
// its reply. Error kInvalid: a row without them, with its place.
JsonObject measure_gsm8k(engine::Engine& engine, const EvaluationInput& input);

// exp of the mean negative log-probability: of every token but the first of a text (a .txt file,
// rows with "text"), each given at most max_length - 1 tokens before it in pieces that follow each
// other; of the trained labels of chats (rows that `twinkle train` reads as such, and says as
// what). The result has perplexity, logprob (the mean, nats), num_tokens (scored) and num_rows.
// Error kInvalid: a row of neither kind, a pair of replies, or a chat that is too long or has
// nothing to score, with its place; nothing to score at all.
JsonObject measure_perplexity(engine::Engine& engine, const EvaluationInput& input);

}  // namespace twinkle::cli
