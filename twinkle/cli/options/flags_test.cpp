#include "twinkle/cli/options/flags.h"

#include <gtest/gtest.h>

namespace twinkle::cli {
namespace {

struct Values {
  int64_t token_budget = 4096;
  double share = 0.5;
  std::string precision = "bf16";
  std::vector<std::string> names;
  int64_t journal_bytes = 1024;
  bool exact = true, loud = false;

  static constexpr auto fields() {
    return std::tuple{option("token_budget", &Values::token_budget, at_least(1), "tokens"),
                      option("share", &Values::share, strictly_between(0, 1), "of the time"),
                      option("precision", &Values::precision, one_of("bf16", "no"), "of weights"),
                      option("name", &Values::names, any(), "of it"),
                      option("journal_bytes", &Values::journal_bytes, at_least(1024), "on disk"),
                      option("exact", &Values::exact, any(), "the same bits"),
                      option("loud", &Values::loud, any(), "how")};
  }
};

Values parsed(std::vector<std::string> arguments, const std::vector<std::string>& names = {}) {
  CLI::App app("", "twinkle");
  Values out;
  add_options(app, out, names);
  std::reverse(arguments.begin(), arguments.end());
  app.parse(arguments);
  return out;
}

std::string error(const std::vector<std::string>& arguments,
                  const std::vector<std::string>& names = {}) {
  try {
    parsed(arguments, names);
  } catch (const CLI::ParseError& e) {
    return e.what();
  }
  return "";
}

TEST(Flags, SetTheOptionsOfTheirNames) {
  const Values v = parsed({"--token-budget", "7", "--share=0.25", "--precision", "no", "--name",
                           "a", "--names", "b,c", "--no-exact", "--loud"});
  EXPECT_EQ(v.token_budget, 7);
  EXPECT_EQ(v.share, 0.25);
  EXPECT_EQ(v.precision, "no");
  EXPECT_EQ(v.names, (std::vector<std::string>{"a", "b,c"}));
  EXPECT_FALSE(v.exact);
  EXPECT_TRUE(v.loud);
  EXPECT_TRUE(parsed({"--exact"}).exact);
  EXPECT_EQ(parsed({}).token_budget, 4096);
}

TEST(Flags, AValueThatCannotBeIsRefusedWithItsLimits) {
  EXPECT_EQ(error({"--token-budget", "0"}),
            "--token-budget is '0', it must be an integer of at least 1");
  EXPECT_EQ(error({"--token-budget", "99999999999999999999"}),
            "--token-budget is '99999999999999999999', it must be an integer of at least 1");
  EXPECT_EQ(error({"--share", "nan"}), "--share is 'nan', it must be a number above 0, below 1");
  EXPECT_EQ(error({"--precision", "fp8"}), "--precision is 'fp8', it must be 'bf16' or 'no'");
}

TEST(Flags, BytesMayHaveAUnit) {
  EXPECT_EQ(parsed({"--journal-bytes", "64MiB"}).journal_bytes, 64 << 20);
  EXPECT_EQ(parsed({"--journal-bytes", "100 GB"}).journal_bytes, 100'000'000'000);
  for (const std::string text : {"1KB", "1.5GB", "64 M"})
    EXPECT_EQ(error({"--journal-bytes", text}),
              "--journal-bytes is '" + text +
                  "', it must be an integer of at least 1024, or with a unit, as 64MiB or 2GB");
}

TEST(Flags, SomeOptionsCanBeTakenAlone) {
  EXPECT_EQ(parsed({"--share", "0.1"}, {"share"}).share, 0.1);
  EXPECT_NE(error({"--loud"}, {"share"}).find("--loud"), std::string::npos);
}

TEST(Flags, HelpTellsDefaultsAndLimits) {
  CLI::App app("", "twinkle");
  Values v;
  add_options(app, v);
  const std::string help = app.help();
  EXPECT_NE(help.find("--token-budget INT=4096"), std::string::npos) << help;
  EXPECT_NE(help.find("--journal-bytes BYTES=1024"), std::string::npos) << help;
  EXPECT_NE(help.find("tokens (at least 1)"), std::string::npos) << help;
  EXPECT_NE(help.find("--precision bf16|no=bf16"), std::string::npos) << help;
  EXPECT_NE(help.find("--exact,--no-exact"), std::string::npos) << help;
}

}  // namespace
}  // namespace twinkle::cli
