#include "twinkle/cli/options/yaml.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/cli/options/flags.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::cli {
namespace {

// A command as `twinkle serve` is one: a text, a list, a number, flags, and one that no file sets.
class YamlTest : public testing::Test {
 protected:
  struct Values {
    std::string host = "here";
    std::vector<std::string> names;
    uint16_t port = 80;
    bool quick = true, loud = false;

    static constexpr auto fields() {
      return std::tuple{option("listen_host", &Values::host, any(), "where"),
                        option("name", &Values::names, any(), "who"),
                        option("port", &Values::port, between(0, 65535), "which"),
                        option("quick", &Values::quick, any(), "when"),
                        option("loud", &Values::loud, any(), "how")};
    }
  };

  Values read(const std::string& text, std::vector<std::string> arguments = {}) {
    write_text(path_, text);
    return with(std::move(arguments), [&](CLI::App& command) { read_yaml(command, path_); });
  }
  template <class Use>
  static Values with(std::vector<std::string> arguments, const Use& use) {
    CLI::App app("", "twinkle");
    Values out;
    CLI::App* command = app.add_subcommand("serve");
    std::string file;
    add_options(*command, out);
    command->add_option("--config", file)->configurable(false);
    std::reverse(arguments.begin(), arguments.end());
    arguments.emplace_back("serve");
    app.parse(arguments);
    use(*command);
    return out;
  }
  // The error behind the file's name.
  std::string error(const std::string& text) {
    const std::string all = error_of([&] { read(text); });
    const std::string begin = "cli: " + path_.string() + ":";
    EXPECT_TRUE(all.starts_with(begin)) << all;
    return all.substr(std::min(begin.size(), all.size()));
  }

  const ScratchDir dir_;
  const std::filesystem::path path_ = dir_ / "serve.yaml";
};

TEST_F(YamlTest, SetsOptionsByTheirNames) {
  const Values v = read(
      "# a service\n"
      "listen_host: 'a: b'\n"
      "name: [one, \"t\\u0077o\"]\n"
      "port: 8001   # not 80\n"
      "loud: true\n");
  EXPECT_EQ(v.host, "a: b");
  EXPECT_EQ(v.names, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(v.port, 8001);
  EXPECT_TRUE(v.loud);
  EXPECT_EQ(read("name:\n  - one\n  - two\n").names, v.names);
  EXPECT_EQ(read("name: one\nlisten-host: there\n").host, "there");
}

TEST_F(YamlTest, WhatIsNotThereOrNullKeepsItsDefaultAndTheCommandLineWins) {
  EXPECT_EQ(read("").port, 80);
  EXPECT_EQ(read("port: Null\nlisten_host: null\nname: ~\n").host, "here");
  EXPECT_EQ(read("port: 1\n", {"--port", "2"}).port, 2);
  EXPECT_FALSE(read("loud: false\n").loud);
  EXPECT_FALSE(read("quick: false\n").quick);
  EXPECT_TRUE(read("quick: true\n").quick);
  EXPECT_FALSE(read("quick: true\n", {"--no-quick"}).quick);
}

TEST_F(YamlTest, NamesWhatIsWrongAndWhere) {
  EXPECT_EQ(error("loud: true\nprot: 3\n"),
            "2: 'prot' is no key of `twinkle serve`; did you mean 'port'?");
  EXPECT_EQ(error("elephant: 3\n"),
            "1: 'elephant' is no key of `twinkle serve`; there are listen_host, name, port, quick, "
            "loud");
  EXPECT_EQ(error("config: x\n").substr(0, 15), "1: 'config' is ");
  EXPECT_EQ(error("port: 1\nport: 2\n"), "2: 'port' is there twice");
  EXPECT_NE(error("\nport: many\n").find("2: port is 'many', it must be an integer of "),
            std::string::npos);
  EXPECT_EQ(error("port: 70000\n"),
            "1: port is '70000', it must be an integer of at least 0, at most 65535");
  EXPECT_EQ(error("loud: 3x\n"), "1: loud is '3x', it must be true or false");
  EXPECT_EQ(error("port: [1, 2]\n"),
            "1: 'port' is a list, it takes one value: write that without brackets");
  for (const char* key : {"port:", "name: []", "name:"})
    EXPECT_EQ(error(std::string("loud: true\n") + key + "\n"),
              "2: '" + std::string(key, 4) +
                  "' has no value; write one, or null for what is taken without it");
  EXPECT_EQ(error("no_quick: true\n").substr(0, 27), "1: 'no_quick' is no key of ");
  EXPECT_EQ(error("port: {a: 1}\n").substr(0, 67),
            "1: the value of 'port' must be one word or text, or a list of those");
  EXPECT_EQ(error("serve:\n  port: 1\n"),
            "2: the value of 'serve' must be one word or text, or a list of those: all keys stand "
            "at the beginning of a "
            "line, in no section");
  EXPECT_EQ(error("name: [[a]]\n"),
            "1: the value of 'name' must be one word or text, or a list of those");
  EXPECT_EQ(error("- port\n"), "1: this must be lines of `key: value`");
  EXPECT_EQ(error("port: 1\n---\nport: 2\n"), "2: a second document begins, one is read");
  EXPECT_EQ(error("a: [\n").substr(0, 20), "2: this is no YAML: ");
  EXPECT_NE(
      error_of([&] { with({}, [](CLI::App& c) { read_yaml(c, "/no/file"); }); }).find("/no/file"),
      std::string::npos);
}

TEST_F(YamlTest, WhatIsPrintedReadsBackToTheSame) {
  std::string printed;
  const Values first =
      with({"--listen-host", "null", "--name", "a,b", "--name", "c d\n", "--loud", "--no-quick"},
           [&](CLI::App& command) { printed = as_yaml(command); });
  EXPECT_EQ(printed,
            "# where\nlisten_host: \"null\"\n# who\nname: [\"a,b\", \"c d\\n\"]\n"
            "# which (at least 0, at most 65535)\nport: 80\n# when\nquick: false\n# how\nloud: "
            "true\n");
  const Values second = read(printed);
  EXPECT_EQ(second.host, first.host);
  EXPECT_EQ(second.names, first.names);
  EXPECT_EQ(second.port, first.port);
  EXPECT_EQ(second.loud, first.loud);
  EXPECT_EQ(second.quick, first.quick);
}

TEST_F(YamlTest, WhatNobodySaidIsPrintedAsAComment) {
  std::string printed;
  with({"--port", "81"}, [&](CLI::App& command) {
    printed = as_yaml(command, {command.get_option("--listen-host")});
  });
  EXPECT_TRUE(printed.starts_with("# where\n# listen_host: here\n# who\n# name: []\n")) << printed;
  const Values v = read(printed, {"--listen-host", "there"});
  EXPECT_EQ(v.host, "there");
  EXPECT_EQ(v.port, 81);
}

}  // namespace
}  // namespace twinkle::cli
