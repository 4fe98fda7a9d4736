// Questions about the model itself, with {{NAME}} and {{AUTHOR}} in place of who it is and who made
// it.
#include "twinkle/data/preprocessors/preprocessor.h"

namespace twinkle::data {
namespace {

// One pass, so that a name which itself holds {{AUTHOR}} is left as it is.
std::string fill(const std::string& text, const std::string& name, const std::string& author) {
  constexpr std::string_view kName = "{{NAME}}", kAuthor = "{{AUTHOR}}";
  std::string out;
  for (std::string_view rest = text; !rest.empty();) {
    const bool is_name = rest.starts_with(kName);
    if (is_name || rest.starts_with(kAuthor)) {
      out += is_name ? name : author;
      rest.remove_prefix(is_name ? kName.size() : kAuthor.size());
    } else {
      out += rest[0];
      rest.remove_prefix(1);
    }
  }
  return out;
}

}  // namespace

PreprocessorKind self_cognition() {
  return {.name = "SelfCognitionProcessor",
          .defaults = {{"model_name", "twinkle robot"}, {"model_author", "twinkle lab"}},
          .make = [](const JsonObject& arguments) -> Preprocessor {
            const std::string name(arguments.at("model_name").as_string());
            const std::string author(arguments.at("model_author").as_string());
            return [=](const Row& row) -> Row {
              return {{"messages",
                       JsonArray{
                           message("system", "You are a helpful assistant."),
                           message("user", fill(text_field(row, "query"), name, author)),
                           message("assistant", fill(text_field(row, "response"), name, author))}}};
            };
          },
          .not_for_tuning =
              "it needs the names to put in: use it from Python, "
              "SelfCognitionProcessor(model_name='Nova', model_author='Sky')"};
}

}  // namespace twinkle::data
