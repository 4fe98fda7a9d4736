#include "twinkle/text/forms.h"

#include <gtest/gtest.h>

#include <set>

namespace twinkle::text {
namespace {

std::string forms(const std::set<std::string_view>& columns) {
  std::string out;
  for (const Form& form : forms_of([&](std::string_view name) { return columns.contains(name); }))
    out += form.listed() + ": " + std::string(form.preprocessor) + "\n";
  return out;
}

TEST(Forms, AreKnownByTheirColumns) {
  EXPECT_EQ(forms({"instruction", "input", "output", "text"}),
            "instruction, output: AlpacaProcessor\n");
  EXPECT_EQ(forms({"conversations", "tools"}), "conversations: ShareGPTProcessor\n");
  EXPECT_EQ(forms({"prompt", "completion", "label"}),
            "prompt, completion: PromptCompletionProcessor\n");
  EXPECT_EQ(forms({"query", "response", "tag"}), "query, response: PromptCompletionProcessor\n");
  EXPECT_EQ(forms({"question", "answer"}), "question, answer: PromptCompletionProcessor\n");
  EXPECT_EQ(forms({"Question", "Answer", "text"}), "");
}

TEST(Forms, ThePromptOfAPairIsNoFormOfItsOwnButAnotherReplyIs) {
  EXPECT_EQ(forms({"conversations", "chosen", "rejected"}),
            "chosen, rejected: PreferenceProcessor\n");
  EXPECT_EQ(forms({"prompt", "chosen", "rejected"}), "chosen, rejected: PreferenceProcessor\n");
  EXPECT_EQ(forms({"prompt", "response", "chosen", "rejected"}),
            "chosen, rejected: PreferenceProcessor\nprompt, response: "
            "PromptCompletionProcessor\n");
}

}  // namespace
}  // namespace twinkle::text
