#include "twinkle/text/forms.h"

#include <algorithm>

namespace twinkle::text {
namespace {

constexpr std::array<Form, 8> kForms = {{{{"chosen", "rejected"}, "PreferenceProcessor"},
                                         {{"conversations", "conversations"}, "ShareGPTProcessor"},
                                         {{"instruction", "output"}, "AlpacaProcessor"},
                                         {{"prompt", "completion"}, "PromptCompletionProcessor"},
                                         {{"prompt", "response"}, "PromptCompletionProcessor"},
                                         {{"query", "response"}, "PromptCompletionProcessor"},
                                         {{"question", "answer"}, "PromptCompletionProcessor"},
                                         {{"question", "response"}, "PromptCompletionProcessor"}}};

// "; the row has text, id: ".
std::string fields_listed(const std::vector<std::string>& fields) {
  constexpr size_t kMaxFields = 12, kMaxName = 40;
  std::string has;
  for (size_t i = 0; i < std::min(fields.size(), kMaxFields); ++i)
    has += (i == 0 ? "; the row has " : ", ") + fields[i].substr(0, kMaxName);
  return has + (fields.size() > kMaxFields ? ", ...: " : ": ");
}

}  // namespace

std::string Form::listed() const {
  const std::string first(columns[0]);
  return columns[0] == columns[1] ? first : first + ", " + std::string(columns[1]);
}

std::vector<Form> forms_of(const std::function<bool(std::string_view)>& has) {
  std::vector<Form> out;
  for (const Form& form : kForms) {
    const bool is_prompt = form.columns[0] == "conversations" && !out.empty();
    if (!is_prompt && has(form.columns[0]) && has(form.columns[1])) out.push_back(form);
  }
  return out;
}

std::string in_place_of_messages(const std::vector<std::string>& fields) {
  if (fields.empty()) return "";
  const auto contains = [&fields](std::string_view name) {
    return std::find(fields.begin(), fields.end(), name) != fields.end();
  };
  if (contains("role") && contains("content"))
    return "; this is one chat's list of messages: pass [{\"messages\": [...]}]";
  std::string has = fields_listed(fields);
  if (const std::vector<Form> forms = forms_of(contains); !forms.empty()) {
    const std::string name(forms.front().preprocessor);
    if (name == "PreferenceProcessor")
      return has + "pairs are for preference optimization, see docs/preferences.md";
    return has + name + " makes messages of them, dataset.map('" + name +
           "') or twinkle train --preprocessor " + name;
  }
  if (contains("text")) has += "texts are for pretraining, twinkle train --loss pretrain; or ";
  has += "make messages of it, [{\"role\": \"user\", \"content\": ...}, ...]";
  if (fields.size() == 1) return has;
  return has +
         "; if they are two of its columns, with dataset.map('PromptCompletionProcessor', "
         "init_args={'prompt': NAME, 'completion': NAME}) or twinkle train --columns "
         "NAME=prompt,NAME=completion";
}

}  // namespace twinkle::text
