// A prompt and its completion in two columns, each a text or, as TRL has them, a list of messages.
// Replies within the prompt are not trained, as TRL documents it.
// Without arguments they are prompt and completion or response, query and response, or question and
// answer or response: the first two that the row has. The columns system and history (a list of
// [prompt, completion]) come before them.
#include <array>
#include <utility>

#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::data {
namespace {

constexpr std::array<std::pair<const char*, const char*>, 5> kPairs = {{{"prompt", "completion"},
                                                                        {"prompt", "response"},
                                                                        {"query", "response"},
                                                                        {"question", "answer"},
                                                                        {"question", "response"}}};

std::pair<std::string, std::string> fields_of(const Row& row, const JsonObject& arguments) {
  std::pair<std::string, std::string> found = kPairs[0];
  for (const auto& [prompt, completion] : kPairs) {
    if (!row.contains(prompt) || !row.contains(completion)) continue;
    found = {prompt, completion};
    break;
  }
  if (const Json& prompt = arguments.at("prompt"); prompt.is_string())
    found.first = prompt.get_string();
  if (const Json& completion = arguments.at("completion"); completion.is_string())
    found.second = completion.get_string();
  return found;
}

void append(JsonArray& messages, std::string_view role, const Row& row, const std::string& field) {
  const Json* value = row.if_contains(field);
  if (value == nullptr || !value->is_array()) {
    messages.push_back(message(role, text_field(row, field)));
    return;
  }
  messages.insert(messages.end(), value->get_array().begin(), value->get_array().end());
}

}  // namespace

PreprocessorKind prompt_completion() {
  return {.name = "PromptCompletionProcessor",
          .defaults = {{"prompt", nullptr}, {"completion", nullptr}, {"system", nullptr}},
          .make = [](const JsonObject& arguments) -> Preprocessor {
            return [=](const Row& row) -> Row {
              const auto [prompt, completion] = fields_of(row, arguments);
              JsonArray messages;
              append(messages, "user", row, prompt);
              leave_untrained(messages);
              append(messages, "assistant", row, completion);
              return {{"messages",
                       with_earlier_messages(row, std::move(messages), arguments.at("system"))}};
            };
          }};
}

}  // namespace twinkle::data
