// MATH (Hendrycks et al. 2021): problem and solution, as one exchange.
#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::data {

PreprocessorKind competition_math() {
  return {.name = "CompetitionMathProcessor",
          .defaults = {},
          .make = [](const JsonObject&) -> Preprocessor {
            return [](const Row& row) -> Row {
              return {{"messages", JsonArray{message("user", text_field(row, "problem")),
                                             message("assistant", text_field(row, "solution"))}}};
            };
          }};
}

}  // namespace twinkle::data
