// MATH for reinforcement learning: the problem is the prompt, the solution is kept for the reward.
#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::data {

PreprocessorKind competition_math_grpo() {
  return {.name = "CompetitionMathGRPOProcessor",
          .defaults = {},
          .make = [](const JsonObject&) -> Preprocessor {
            return [](const Row& row) -> Row {
              constexpr std::string_view kSystem =
                  "You are a careful mathematician. Reply with the final answer alone, as "
                  "\\boxed{answer}.";
              return {{"messages", JsonArray{message("system", kSystem),
                                             message("user", text_field(row, "problem"))}},
                      {"user_data", JsonArray{JsonArray{"solution", text_field(row, "solution")}}}};
            };
          },
          .not_for_tuning =
              "it makes prompts without replies, for reinforcement learning; "
              "CompetitionMathProcessor keeps the solutions"};
}

}  // namespace twinkle::data
