// CLEVR-CoGenT as visual reasoning has it: image, problem and a solution, of which rewards compare
// what stands between <answer> and </answer>.
#include "twinkle/data/preprocessors/pictures.h"
#include "twinkle/data/preprocessors/preprocessor.h"
#include "twinkle/text/tools/scan.h"

namespace twinkle::data {
namespace {

constexpr std::string_view kClevrSystem =
    "You are given a picture and a question about it. First think about the question step by step, "
    "between <think> and </think>. Then give the answer alone, between <answer> and </answer>.";

std::string_view answer_in(std::string_view solution) {
  constexpr std::string_view kBegin = "<answer>", kEnd = "</answer>";
  const size_t begin = solution.find(kBegin);
  const size_t end = begin == solution.npos ? begin : solution.find(kEnd, begin);
  if (end == solution.npos) return solution;
  return solution.substr(begin + kBegin.size(), end - begin - kBegin.size());
}

Row question_about_picture(const Row& row, std::string_view system) {
  const std::string problem = question_of(row, "problem");
  const Json* image = row.if_contains("image");
  require(image && !image->is_null(), Code::kInvalid, "data: field 'image' is missing");
  const std::string solution = text_field_or_empty(row, "solution");
  return {{"messages", prompt_with(JsonArray(1, *image), system, problem)},
          {"user_data", JsonArray{JsonArray{"ground_truth", text::stripped(answer_in(solution))},
                                  JsonArray{"solution", solution}}}};
}

}  // namespace

PreprocessorKind clevr() {
  return {.name = "CLEVRProcessor",
          .defaults = {{"system", nullptr}},
          .make = [](const JsonObject& arguments) -> Preprocessor {
            const Json& given = arguments.at("system");
            const std::string system(given.is_null() ? kClevrSystem
                                                     : std::string_view(given.as_string()));
            return [system](const Row& row) { return question_about_picture(row, system); };
          },
          .not_for_tuning = "it makes prompts without replies, for reinforcement learning",
          .about =
              "image, problem and solution to a prompt with the picture, and user_data with "
              "ground_truth\n(the contents of the solution's <answer>, else all of it) and "
              "solution.\n\nsystem: the system message; None: one that asks for <think> and "
              "<answer>. InvalidError: no text; of a\nrow: a problem that is missing, empty or no "
              "text, no image, a solution that is no text."};
}

}  // namespace twinkle::data
