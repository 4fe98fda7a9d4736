#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/cli/evaluate/evaluation.h"
#include "twinkle/cli/progress/bar.h"
#include "twinkle/cli/train/rows.h"
#include "twinkle/data/encode.h"
#include "twinkle/data/forms.h"
#include "twinkle/text/rust/shared_tokenizer.h"

namespace twinkle::cli {
namespace {

constexpr int32_t kUnscored = -100;     // the label of a token that is not scored
constexpr int64_t kBatchTokens = 1024;  // an operation

// Pieces of the text, each beginning with the last token of the one before, so that every token
// but the first is scored once.
void add_text(const std::vector<int64_t>& ids, int64_t max_length,
              std::vector<engine::Example>& out) {
  for (int64_t begin = 0; begin + 1 < std::ssize(ids); begin += max_length - 1) {
    const int64_t end = std::min(begin + max_length, std::ssize(ids));
    engine::Example example;
    example.input_ids.assign(ids.begin() + begin, ids.begin() + end);
    example.labels.assign(ids.begin() + begin + 1, ids.begin() + end);
    example.labels.push_back(kUnscored);
    out.push_back(std::move(example));
  }
}

class Scored {
 public:
  Scored(const EvaluationInput& input, int64_t max_length)
      : input_(input), max_length_(max_length), tokenizer_(text::shared_tokenizer(input.model)) {
    const std::filesystem::path file = input.data;
    if (file.extension() == ".txt") {
      add_text(tokenizer_->encode(read_file(file, "cli"), true), max_length_, examples);
      num_rows = 1;
      return;
    }
    const data::Dataset rows = read_rows(input.data, {.columns = input.columns});
    std::vector<int64_t> first(input.limit > 0 ? std::min(input.limit, rows.size()) : rows.size());
    std::iota(first.begin(), first.end(), 0);
    num_rows = std::ssize(first);
    if (std::ranges::any_of(rows.rows(), [](const data::Row& row) { return !is_text(row); }))
      template_.emplace(input.model,
                        text::TemplateOptions{.max_length = 0, .default_system = input.system});
    const data::Dataset read =
        rows.slice(first).encode([this](const data::Row& row) { return checked(row); });
    for (const data::Row& row : read.rows()) add(row);
  }

  std::vector<engine::Example> examples;
  int64_t num_rows = 0;

 private:
  static bool is_text(const data::Row& row) {
    const Json *text = row.if_contains("text"), *messages = row.if_contains("messages");
    return text && text->is_string() && (!messages || messages->is_null()) &&
           data::forms_of(row).empty();
  }

  // A text as it is, a chat encoded.
  data::Rows checked(const data::Row& row) const {
    if (is_text(row)) return {row};
    require(row.contains("messages") || !data::read_form(row).empty(), Code::kInvalid,
            "cli: the row has neither messages nor a text; give rows of chats, {\"messages\": "
            "...}, or of texts, {\"text\": ...}");
    refuse_preferences(row);
    data::Rows made = data::encoder(*template_)(row);
    for (const data::Row& chat : made) check(data::integers(chat, "labels"));
    return made;
  }

  void check(const std::vector<int32_t>& labels) const {
    require(std::ssize(labels) <= max_length_, Code::kInvalid, "cli: the chat has ", labels.size(),
            " tokens, ", input_.max_length > 0 ? "--max-length is " : "the model's context is ",
            max_length_, "; shorten the row or leave it out");
    require(std::ranges::any_of(labels, [](int32_t l) { return l != kUnscored; }), Code::kInvalid,
            "cli: the chat has no reply of the assistant, whose tokens are scored; add one");
  }

  void add(const data::Row& row) {
    if (is_text(row))
      return add_text(tokenizer_->encode(row.at("text").as_string(), true), max_length_, examples);
    examples.push_back(
        {.input_ids = data::integers(row, "input_ids"), .labels = data::integers(row, "labels")});
  }

  const EvaluationInput& input_;
  const int64_t max_length_;
  const std::shared_ptr<const text::Tokenizer> tokenizer_;
  std::optional<text::Template> template_;
};

}  // namespace

JsonObject measure_perplexity(engine::Engine& engine, const EvaluationInput& input) {
  const int64_t positions = engine.model_info().max_positions;
  require(input.max_length <= positions, Code::kInvalid, "cli: --max-length is ", input.max_length,
          ", the model's context is ", positions);
  const Scored scored(input, input.max_length > 0 ? input.max_length : positions);
  double sum = 0, num_tokens = 0, done = 0, total = 0;
  for (const engine::Example& example : scored.examples)
    total += static_cast<double>(example.input_ids.size());
  Bar bar("perplexity", total, "tokens");
  for (size_t next = 0; next < scored.examples.size();) {
    engine::Forward work{.tenant = kMeasured};
    for (int64_t held = 0; next < scored.examples.size(); ++next) {
      held += std::ssize(scored.examples[next].input_ids);
      if (held > kBatchTokens && !work.sequences.empty()) break;
      work.sequences.push_back(scored.examples[next]);
    }
    const auto result = engine.run<engine::ForwardResult>(work);
    for (size_t i = 0; i < work.sequences.size(); ++i) {
      for (const float logp : result.logps[i]) sum += logp;
      num_tokens += static_cast<double>(std::ranges::count_if(
          work.sequences[i].labels, [](int32_t label) { return label != kUnscored; }));
      done += static_cast<double>(work.sequences[i].input_ids.size());
    }
    bar.show(done);
  }
  require(num_tokens > 0, Code::kInvalid, "cli: --data ", input.data,
          " has no token to score; a text needs at least 2");
  return {{"perplexity", std::exp(-sum / num_tokens)},
          {"logprob", sum / num_tokens},
          {"num_tokens", static_cast<int64_t>(num_tokens)},
          {"num_rows", scored.num_rows}};
}

}  // namespace twinkle::cli
