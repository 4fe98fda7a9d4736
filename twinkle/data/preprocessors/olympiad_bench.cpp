// OlympiadBench (He et al. 2024): problems of mathematics and physics with up to nine pictures, and
// lists of answers that rewards compare.
#include "twinkle/base/fields/options.h"
#include "twinkle/data/preprocessors/pictures.h"
#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/text/columns.h"
#include "twinkle/text/tools/scan.h"

namespace twinkle::data {
namespace {

struct Language {
  std::string_view name, system, context;
};

constexpr Language kLanguages[] = {
    {"zh",
     "你是数学和物理解题专家。请仔细读题，逐步推理，并把最终答案写在 \\boxed{} 中。"
     "如有多个答案，请用逗号分隔。",
     "背景信息："},
    {"en",
     "You are an expert in mathematics and physics. Read the problem carefully, reason step by "
     "step, and give the final answer in \\boxed{}. Separate several answers by commas.",
     "Context: "}};

const Language& language_of(std::string_view name) {
  for (const Language& language : kLanguages)
    if (language.name == name) return language;
  fail(Code::kInvalid, "data: OlympiadBenchProcessor argument 'language' is '", name,
       "', expected 'zh' or 'en'");
}

// The texts of a list, or of one value.
std::vector<std::string> texts_of(const Row& row, std::string_view field) {
  const Json* value = row.if_contains(field);
  if (!value || value->is_null()) return {};
  std::vector<std::string> out;
  for (const Json& item : value->is_array() ? value->get_array() : JsonArray(1, *value))
    out.push_back(told(item));
  return out;
}

std::string answers_of(const Row& row, const std::string& unit) {
  std::string out;
  for (const std::string& text : texts_of(row, "final_answer"))
    if (const std::string_view answer = text::stripped(text); !answer.empty())
      out.append(out.empty() ? "" : ", ").append(answer);
  return unit.empty() || out.empty() ? out : out + " " + unit;
}

Row problem_of(const Row& row, std::string_view system, const Language& language) {
  std::string text = question_of(row, "question");
  if (const std::string context = text_field_or_empty(row, "context"); !context.empty())
    text = std::string(language.context) + context + "\n\n" + text;
  std::string solution;
  for (const std::string& step : texts_of(row, "solution"))
    solution.append(solution.empty() ? "" : "\n").append(step);
  const Json* several = row.if_contains("is_multiple_answer");
  const bool is_several = several && text::truth(*several).value_or(false);
  const std::string subject = text_field_or_empty(row, "subject");
  const std::string unit = text_field_or_empty(row, "unit");
  // user_data has texts, and other values as JSON.
  return {{"messages", prompt_with(pictures_of(row), system, text)},
          {"user_data", JsonArray{JsonArray{"ground_truth", answers_of(row, unit)},
                                  JsonArray{"solution", solution},
                                  JsonArray{"is_multiple_answer", is_several ? "true" : "false"},
                                  JsonArray{"subject", subject.empty() ? "maths" : subject},
                                  JsonArray{"unit", unit}}}};
}

}  // namespace

PreprocessorKind olympiad_bench() {
  return {
      .name = "OlympiadBenchProcessor",
      .defaults = {{"system", nullptr}, {"language", "zh"}},
      .make = [](const JsonObject& arguments) -> Preprocessor {
        const Language& language =
            language_of(std::string_view(arguments.at("language").as_string()));
        const Json& given = arguments.at("system");
        const std::string system(given.is_null() ? language.system
                                                 : std::string_view(given.as_string()));
        return [system, &language](const Row& row) { return problem_of(row, system, language); };
      },
      .not_for_tuning = "it makes prompts without replies, for reinforcement learning",
      .about =
          "question, context, image_1 to image_9, final_answer, solution, unit, "
          "is_multiple_answer and\nsubject to a prompt, with the pictures first, and user_data "
          "with ground_truth (the answers\njoined by ', ', with the unit), solution, "
          "is_multiple_answer, subject and unit.\n\nsystem: the system message; None: one in "
          "`language`, 'zh' or 'en', that asks for \\boxed{}.\nInvalidError: a system that is "
          "no text, another language; of a row: a question that is missing,\nempty or no text."};
}

}  // namespace twinkle::data
