// GSM8K (Cobbe et al. 2021): the number after "####" is the ground truth, kept for the reward
// without thousands commas.
#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::data {
namespace {

std::string ground_truth(const std::string& answer) {
  const size_t mark = answer.rfind("####");
  require(mark != answer.npos, Code::kInvalid,
          "data: field 'answer' has no '####', after which its number must come");
  std::string truth;
  for (const char c : answer.substr(mark + 4)) {
    const bool space = std::string_view(" \t\r\n").find(c) != std::string_view::npos;
    if (space && !truth.empty()) break;
    if (!space && c != ',') truth += c;
  }
  require(!truth.empty(), Code::kInvalid, "data: field 'answer' has nothing after its '####'");
  return truth;
}

}  // namespace

PreprocessorKind gsm8k() {
  return {.name = "GSM8KProcessor",
          .defaults = {{"system", nullptr}, {"add_assistant", false}},
          .make = [](const JsonObject& arguments) -> Preprocessor {
            return [=](const Row& row) -> Row {
              const std::string answer = text_field(row, "answer");
              JsonArray messages = system_messages(arguments.at("system"));
              messages.push_back(message("user", text_field(row, "question")));
              if (arguments.at("add_assistant").as_bool())
                messages.push_back(message("assistant", answer));
              return {{"messages", std::move(messages)},
                      {"user_data", JsonArray{JsonArray{"ground_truth", ground_truth(answer)}}}};
            };
          },
          .not_for_tuning =
              "it makes prompts without replies, for reinforcement learning; "
              "PromptCompletionProcessor keeps the answers"};
}

}  // namespace twinkle::data
