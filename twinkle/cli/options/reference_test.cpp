#include "twinkle/cli/options/reference.h"

#include <gtest/gtest.h>

#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::cli {
namespace {

TEST(OptionsReference, IsTheDocumentThatTheDeclarationsMake) {
  EXPECT_EQ(read_text("docs/options.md"), options_reference())
      << "tools/options_reference.py writes it anew";
}

TEST(OptionsReference, TellsWhatHappensWithoutAnOptionThatHasNoDefault) {
  const std::string text = options_reference();
  for (const char* row :
       {"| `name` | the model's | ", "| `auth` | keys if the state has any, else open | ",
        "| `model` | of twinkle serve smollm2, else none | ",
        "| `device` | TWINKLE_DEVICE, else a GPU where there is one, else cpu | "})
    EXPECT_NE(text.find(row), std::string::npos) << row;
}

}  // namespace
}  // namespace twinkle::cli
