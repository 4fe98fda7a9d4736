// GSM8K (Cobbe et al. 2021): grade-school mathematics whose answers are numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <deque>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/cli/evaluate/evaluation.h"
#include "twinkle/cli/progress/bar.h"
#include "twinkle/data/dataset.h"

namespace twinkle::cli {
namespace {

constexpr const char* kOrder =
    "Solve the problem step by step. End with a line of '#### ' and the number alone.";
constexpr size_t kAtATime = 128;  // questions in the engine's queue

std::string plain_number(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (std::string_view(", \t\r$%*").find(c) == std::string_view::npos) out += c;
  while (out.ends_with('.')) out.pop_back();
  return out;
}

struct Question {
  std::string truth;
  std::vector<int32_t> prompt;
};

std::vector<Question> questions_of(const data::Dataset& rows, const text::Template& tmpl,
                                   const EvaluationInput& input) {
  std::vector<Question> out;
  const int64_t count = input.limit > 0 ? std::min(input.limit, rows.size()) : rows.size();
  for (int64_t i = 0; i < count; ++i) {
    const data::Row& row = rows.row(i);
    const auto text = [&](const char* field) {
      const Json* value = row.if_contains(field);
      require(value && value->is_string(), Code::kInvalid, "cli: ", rows.where(i), ": field '",
              field, "' is ", value ? "no text" : "missing",
              "; rows of GSM8K have a question, and an answer that ends with '#### ' and a number");
      return std::string(value->get_string());
    };
    const std::string answer = text("answer");
    require(answer.find("####") != answer.npos, Code::kInvalid, "cli: ", rows.where(i),
            ": field 'answer' has no '####', after which its number must come");
    JsonArray messages{
        JsonObject{{"role", "system"}, {"content", input.system.empty() ? kOrder : input.system}},
        JsonObject{{"role", "user"}, {"content", text("question")}}};
    const auto feature = tmpl.encode(JsonObject{{"messages", std::move(messages)}}, true).at(0);
    out.push_back({gsm8k_answer(answer), {feature.input_ids.begin(), feature.input_ids.end()}});
  }
  require(!out.empty(), Code::kInvalid, "cli: --data ", input.data, " has no rows");
  return out;
}

std::string share_of(int64_t correct, int64_t done) {
  char text[32];
  std::snprintf(text, sizeof text, "accuracy %.3f",
                static_cast<double>(correct) / static_cast<double>(done));
  return text;
}

}  // namespace

std::string gsm8k_answer(const std::string& reply) {
  constexpr std::string_view kMark = "####", kBox = "\\boxed{";
  if (const size_t mark = reply.rfind(kMark); mark != reply.npos) {
    const std::string_view after = std::string_view(reply).substr(mark + kMark.size());
    return plain_number(after.substr(0, after.find('\n')));
  }
  const size_t box = reply.rfind(kBox);
  if (box == reply.npos) return "";
  const std::string_view after = std::string_view(reply).substr(box + kBox.size());
  return plain_number(after.substr(0, after.find('}')));
}

bool same_number(const std::string& a, const std::string& b) {
  const auto number = [](const std::string& text, double& out) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size();
  };
  double x = 0, y = 0;
  if (number(a, x) && number(b, y)) return std::abs(x - y) < 1e-5;
  return !a.empty() && a == b;
}

JsonObject measure_gsm8k(engine::Engine& engine, const EvaluationInput& input) {
  const text::Template tmpl(input.model, {.max_length = 0});
  const std::vector<Question> questions =
      questions_of(data::Dataset::read(input.data, data::renames_of(input.columns)), tmpl, input);
  const auto total = std::ssize(questions);
  Bar bar("gsm8k", static_cast<double>(total), "questions");
  std::deque<engine::Future> waiting;
  JsonArray rows;
  size_t sent = 0;
  int64_t correct = 0, answered = 0, num_tokens = 0;
  while (std::ssize(rows) < total) {
    for (; sent < questions.size() && waiting.size() < kAtATime; ++sent)
      waiting.push_back(engine.submit(engine::Sample{
          .tenant = kMeasured,
          .prompts = {questions[sent].prompt},
          .params = {{.max_tokens = input.max_tokens, .temperature = 0, .logprobs = false}}}));
    const auto result = std::get<engine::SampleResult>(waiting.front().get());
    waiting.pop_front();
    const std::vector<int32_t>& tokens = result.completions.at(0).at(0).tokens;
    const std::string reply = tmpl.decode(std::vector<int64_t>(tokens.begin(), tokens.end()), true);
    const std::string answer = gsm8k_answer(reply), &truth = questions[rows.size()].truth;
    const bool right = same_number(answer, truth);
    correct += right;
    answered += !answer.empty();
    num_tokens += std::ssize(tokens);
    rows.push_back(
        JsonObject{{"truth", truth}, {"answer", answer}, {"correct", right}, {"reply", reply}});
    bar.show(static_cast<double>(rows.size()), share_of(correct, std::ssize(rows)));
  }
  const double n = static_cast<double>(total), share = static_cast<double>(correct) / n;
  return {
      {"accuracy", share},      {"stderr", std::sqrt(share * (1 - share) / std::max(n - 1, 1.0))},
      {"correct", correct},     {"answered", answered},
      {"num_rows", total},      {"num_tokens", num_tokens},
      {"rows", std::move(rows)}};
}

}  // namespace twinkle::cli
