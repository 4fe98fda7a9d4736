#include "twinkle/cli/options/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "twinkle/cli/command.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::cli {

void train(CLI::App& app, Action& action);

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

TEST(OptionsReference, HasAllOptionsOfTrain) {
  CLI::App app("", "twinkle");
  Action action;
  train(app, action);
  const std::string reference = options_reference();
  std::set<std::string> missing;
  for (const CLI::Option* option : app.get_subcommand("train")->get_options()) {
    if (option->get_positional()) continue;
    std::string name = option->get_name().substr(2);
    std::replace(name.begin(), name.end(), '-', '_');
    if (reference.find("\n| `" + name + "` | ") == std::string::npos) missing.insert(name);
  }
  EXPECT_EQ(missing, (std::set<std::string>{"config", "help", "help_all"}));
}

}  // namespace
}  // namespace twinkle::cli
