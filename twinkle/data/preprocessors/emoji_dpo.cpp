// Preference pairs over one prompt: `positive` and `negative` are a trajectory each.
#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::data {
namespace {

std::string argument(const JsonObject& arguments, std::string_view name) {
  return std::string(arguments.at(name).as_string());
}

}  // namespace

PreprocessorKind emoji_dpo() {
  return {.name = "EmojiDPOProcessor",
          .defaults = {{"system", nullptr},
                       {"chosen_key", "answer_zh"},
                       {"rejected_key", "answer_en"},
                       {"prompt_key", "prompt"}},
          .make = [](const JsonObject& arguments) -> Preprocessor {
            return [=](const Row& row) -> Row {
              const auto trajectory = [&](const std::string& key) -> JsonObject {
                JsonArray messages{
                    message("user", text_field(row, argument(arguments, "prompt_key"))),
                    message("assistant", text_field(row, key))};
                return {{"messages",
                         with_earlier_messages(row, std::move(messages), arguments.at("system"))}};
              };
              return {{"positive", trajectory(argument(arguments, "chosen_key"))},
                      {"negative", trajectory(argument(arguments, "rejected_key"))}};
            };
          },
          .not_for_tuning =
              "it makes pairs of chats, for preference optimization: docs/preferences.md"};
}

}  // namespace twinkle::data
