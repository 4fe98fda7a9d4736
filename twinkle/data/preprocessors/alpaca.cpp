// Stanford Alpaca's columns: instruction, input (often empty) and output; and LLaMA-Factory's two
// more, system and history, a list of [instruction, output].
#include <utility>

#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::data {

std::string instruction_of(const Row& row) {
  const std::string input = text_field_or_empty(row, "input");
  return text_field(row, "instruction") + (input.empty() ? "" : "\n" + input);
}

PreprocessorKind alpaca() {
  return {.name = "AlpacaProcessor", .defaults = {}, .make = [](const JsonObject&) -> Preprocessor {
            return [](const Row& row) -> Row {
              JsonArray messages{message("user", instruction_of(row)),
                                 message("assistant", text_field(row, "output"))};
              return {{"messages", with_earlier_messages(row, std::move(messages))}};
            };
          }};
}

}  // namespace twinkle::data
