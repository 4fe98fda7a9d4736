#include "twinkle/cli/evaluate/evaluation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/cli/tiny_chat_for_test.h"
#include "twinkle/text/rust/shared_tokenizer.h"

namespace twinkle::cli {
namespace {

TEST(Evaluation, AGsm8kAnswerIsBehindTheLastMarkOrInTheLastBox) {
  for (const auto& [reply, answer] :
       std::vector<std::pair<std::string, std::string>>{{"#### 1\nso #### 1,234.\nmore", "1234"},
                                                        {"it is \\boxed{3} or \\boxed{$42$}", "42"},
                                                        {"#### 7%", "7"},
                                                        {"#### **-5**", "-5"},
                                                        {"the answer is 12", ""},
                                                        {"####", ""},
                                                        {"", ""}})
    EXPECT_EQ(gsm8k_answer(reply), answer) << reply;
  EXPECT_TRUE(same_number("18.00", "18"));
  EXPECT_TRUE(same_number("x", "x"));
  for (const auto& [a, b] : std::vector<std::pair<std::string, std::string>>{
           {"18", "19"}, {"18x", "18"}, {"", ""}, {"x", "y"}})
    EXPECT_FALSE(same_number(a, b)) << a << " " << b;
}

class Evaluations : public testing::Test {
 protected:
  Evaluations() : engine_(options(), text::decoder_of) {
    engine_.run<engine::Done>(engine::Create{.tenant = kMeasured, .frozen = true});
  }
  engine::EngineOptions options() const {
    engine::EngineOptions out;
    out.model.path = tiny_.model();
    out.model.mixed_precision = "no";
    return out;
  }
  EvaluationInput input(const char* file, const std::string& text, int64_t max_length = 0) const {
    write_text(tiny_.path(file), text);
    return {.model = tiny_.model(),
            .data = tiny_.path(file),
            .max_tokens = 3,
            .max_length = max_length};
  }
  // Mean log-probability of ids[1..] with at most `max_length` tokens a piece, one by one.
  double logprob_of(const std::string& text, int64_t max_length) {
    double sum = 0;
    for (size_t t = 1; t < text.size(); ++t) {
      const size_t begin = (t - 1) / (max_length - 1) * (max_length - 1);
      engine::Example example;
      for (size_t i = begin; i < t; ++i) {
        example.input_ids.push_back(static_cast<unsigned char>(text[i]));
        example.labels.push_back(i + 1 < t ? -100 : static_cast<unsigned char>(text[t]));
      }
      const auto result = engine_.run<engine::ForwardResult>(
          engine::Forward{.tenant = kMeasured, .sequences = {example}});
      sum += result.logps[0].back();
    }
    return sum / static_cast<double>(text.size() - 1);
  }

  const TinyChat tiny_;
  engine::Engine engine_;
};

TEST_F(Evaluations, EachTokenOfATextButTheFirstIsScoredOnceWhateverThePieces) {
  const std::string text = "bcdefghijklmnopq";  // a token a byte
  for (const int64_t max_length : {2, 5, 6, 256}) {
    testing::internal::CaptureStderr();
    const JsonObject result = measure_perplexity(engine_, input("x.txt", text, max_length));
    testing::internal::GetCapturedStderr();
    EXPECT_EQ(get<int64_t>(result, "num_tokens"), 15);
    const double expected = logprob_of(text, max_length);
    EXPECT_NEAR(get<double>(result, "logprob"), expected, 1e-4) << max_length;
    EXPECT_NEAR(get<double>(result, "perplexity"), std::exp(-expected), 1e-2) << max_length;
  }
}

TEST_F(Evaluations, OfAChatTheTrainedLabelsAreScored) {
  const JsonObject result = measure_perplexity(
      engine_, input("rows.jsonl", R"({"messages": [{"role": "user", "content": "q"}, )"
                                   R"({"role": "assistant", "content": "bb"}]})"
                                   "\n"));
  EXPECT_EQ(get<int64_t>(result, "num_tokens"), 4);  // b, b, </s>, the line's end
}

TEST_F(Evaluations, RowsOfAKnownFormAreReadAndSaidAsInATraining) {
  const auto chat = input("chat.jsonl", R"({"messages": [{"role": "user", "content": "q"}, )"
                                        R"({"role": "assistant", "content": "bb"}]})");
  const double expected = get<double>(measure_perplexity(engine_, chat), "logprob");
  const std::string read = "prompt, completion: read as PromptCompletionProcessor\n";
  for (const auto& [file, text, said] :
       std::vector<std::tuple<const char*, const char*, std::string>>{
           {"p.jsonl", R"({"Q": "q", "completion": "bb"})", read},
           {"p.csv", "Q;completion\nq;bb\n", "separated by ';'; " + read},
           {"a.jsonl", R"({"instruction": "q", "output": "bb", "Q": 1})",
            "instruction, output: read as AlpacaProcessor\n"}}) {
    EvaluationInput of_form = input(file, text);
    of_form.columns = "Q=prompt";
    testing::internal::CaptureStderr();
    const JsonObject result = measure_perplexity(engine_, of_form);
    const std::string printed = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(printed.starts_with(of_form.data + ": " + said)) << printed;
    EXPECT_EQ(get<double>(result, "logprob"), expected) << file;
  }
}

TEST_F(Evaluations, BadRowsAreNamedWithTheirPlace) {
  const auto error = [&](const std::string& row, auto measure, int64_t max_length = 0) {
    const EvaluationInput bad = input("rows.jsonl", row + "\n", max_length);
    const std::string text = error_of([&] { measure(engine_, bad); });
    const size_t at = text.find(bad.data);
    return at == text.npos ? text : text.substr(at + bad.data.size());
  };
  EXPECT_EQ(error(R"({"a": 1})", measure_perplexity),
            " line 1: the row has neither messages nor a text; give rows of chats, {\"messages\": "
            "...}, or of texts, {\"text\": ...}");
  EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": "q"}]})", measure_perplexity),
            " line 1: the chat has no reply of the assistant, whose tokens are scored; add one");
  EXPECT_EQ(error(R"({"prompt": "q", "completion": null})", measure_perplexity),
            " line 1: field 'completion' is null; give it a value, or leave the row out");
  EXPECT_TRUE(error(R"({"prompt": "q", "chosen": "a", "rejected": "b"})", measure_perplexity)
                  .starts_with(" line 1: field 'rejected' is the worse one of a pair"));
  EXPECT_EQ(error(R"({"text": "a"})", measure_perplexity),
            " has no token to score; a text needs at least 2");
  EXPECT_EQ(error(R"({"text": "a"})", measure_perplexity, 1000),
            "cli: --max-length is 1000, the model's context is 256");
  EXPECT_EQ(error(R"({"question": "a"})", measure_gsm8k),
            " line 1: field 'answer' is missing; rows of GSM8K have a question, and an answer that "
            "ends with '#### ' and a number");
  EXPECT_EQ(error(R"({"question": "a", "answer": "2"})", measure_gsm8k),
            " line 1: field 'answer' has no '####', after which its number must come");
}

TEST(EvalCommand, WritesItsResultAsJson) {
  const TinyChat tiny;
  write_text(tiny.path("rows.jsonl"),
             "{\"question\": \"a\", \"answer\": \"#### 1\"}\n"
             "{\"question\": \"b\", \"answer\": \"#### 2\"}\n");
  const std::vector<std::string> eval{"eval",         tiny.model(),
                                      "--task",       "gsm8k",
                                      "--max-tokens", "3",
                                      "--data",       tiny.path("rows.jsonl"),
                                      "--json",       tiny.path("result.json"),
                                      "--adapter",    tiny.adapter("one", {"q_proj"})};
  const Ran got = ran(eval);
  EXPECT_EQ(got.status, 0) << got.error;
  EXPECT_EQ(got.out, "accuracy 0.0000 +- 0.0000 (0 of 2 right, 0 with an answer)\n");
  EXPECT_NE(got.error.find("gsm8k "), std::string::npos) << got.error;
  EXPECT_NE(got.error.find(" questions/s"), std::string::npos) << got.error;
  const Json result = read_json(tiny.path("result.json"));
  EXPECT_EQ(get<int64_t>(result, "num_rows"), 2);
  EXPECT_EQ(result.at("rows").as_array().size(), 2U);
  const Ran wrong = ran({"eval", tiny.model(), "--task", "gsm8k", "--data", tiny.path("none")});
  EXPECT_EQ(wrong.status, 1);
  EXPECT_EQ(wrong.error,
            "twinkle: cli: --data " + tiny.path("none") + " does not exist; name a file of rows\n");
  EXPECT_EQ(ran({"eval", tiny.model(), "--task", "mmlu", "--data", "x"}).status, 2);
}

}  // namespace
}  // namespace twinkle::cli
