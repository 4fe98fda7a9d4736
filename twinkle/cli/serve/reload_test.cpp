#include "twinkle/cli/serve/reload.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/cli/options/yaml.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::cli {
namespace {

class ReloadTest : public testing::Test {
 protected:
  // As a start reads its options.
  void start(const std::string& line, const std::string& yaml) {
    write_text(path_, yaml);
    add_serve_options(command_, running_);
    command_.parse(line + " --state " + (dir_ / "state").string() + " --device cpu");
    file_ = ConfigFile(command_, path_.string());
    read_yaml(command_, path_);
    settle_options(command_, running_);
  }
  Reload reload(const std::string& yaml) {
    write_text(path_, yaml);
    return take_over(running_, file_.read());
  }

  const ScratchDir dir_;
  const std::filesystem::path path_ = dir_ / "serve.yaml";
  CLI::App command_{"", "serve"};
  ServeOptions running_;
  ConfigFile file_;
};

using Texts = std::vector<std::string>;

TEST_F(ReloadTest, WhatCanChangeIsTakenOverAndTheRestIsNamedWithBothValues) {
  start("", "model: smollm2\nname: [a]\nmax_sessions: 5\npatience_seconds: 3\n");
  const Reload told = reload(
      "model: smollm2\nname: [a, b]\nmax_sessions: 7\nlog_level: debug\nport: 8001\n"
      "unix_socket: other.sock\n"
      "token_budget: 100\npark_seconds: 9\nmax_body_bytes: 2MiB\n");
  EXPECT_EQ(running_.names, (Texts{"a", "b"}));
  EXPECT_EQ(running_.service.kept.max_sessions, 7);
  EXPECT_EQ(running_.log_level, Level::kDebug);
  EXPECT_EQ(running_.service.silence.park_after, std::chrono::seconds(9));
  EXPECT_EQ(running_.bodies.max_body_bytes, 2 << 20);
  EXPECT_EQ(running_.http.patience, server::HttpOptions().patience) << "the file has it no more";
  EXPECT_EQ(running_.http.port, 8000);
  EXPECT_EQ(running_.engine.scheduling.token_budget, ServeOptions().engine.scheduling.token_budget);
  EXPECT_EQ(told.changed,
            (Texts{"name was '[a]' and is '[a, b]'", "patience_seconds was '3' and is '30'",
                   "log_level was 'info' and is 'debug'",
                   "max_body_bytes was '67108864' and is '2097152'",
                   "park_seconds was '300' and is '9'", "max_sessions was '5' and is '7'"}));
  const std::string restart = " from the next start on: restart the server for it";
  EXPECT_EQ(told.kept, (Texts{"port stays '8000', and is '8001'" + restart,
                              "unix_socket stays '', and is 'other.sock'" + restart,
                              "token_budget stays '4096', and is '100'" + restart}));
  EXPECT_TRUE(reload(read_text(path_)).changed.empty()) << "again the same";
}

TEST_F(ReloadTest, TheCommandLineStillWins) {
  start("--log-level warning --no-deterministic --max-sessions 5", "port: 9000\n");
  const Reload told = reload("log_level: debug\ndeterministic: true\nport: 9000\n");
  EXPECT_EQ(running_.log_level, Level::kWarning);
  EXPECT_EQ(running_.service.kept.max_sessions, 5);
  EXPECT_EQ(told.changed, Texts{});
  EXPECT_EQ(told.kept, Texts{});
}

TEST_F(ReloadTest, NothingChangesWhereAnythingIsWrong) {
  start("", "max_sessions: 5\n");
  const auto refused = [&](const std::string& yaml) {
    const std::string why = error_of([&] { reload(yaml); });
    EXPECT_EQ(running_.service.kept.max_sessions, 5) << yaml;
    return why.substr(why.find(path_.string()) == why.npos ? 0 : why.find("serve.yaml"));
  };
  EXPECT_EQ(refused("max_sessions: 6\nlog_level: [\n").find("serve.yaml:3: this is no YAML"), 0U);
  EXPECT_EQ(refused("max_sessions: 6\nmax_sesions: 7\n"),
            "serve.yaml:2: 'max_sesions' is no key of `twinkle serve`; did you mean "
            "'max_sessions'?");
  EXPECT_EQ(refused("max_sessions: 6\nmax_samplers: 0\n").find("serve.yaml:2: "), 0U);
  EXPECT_EQ(refused("max_sessions: 6\nmax_body_bytes: 4GiB\n").find("serve.yaml:2: "), 0U);
  EXPECT_NE(refused("max_sessions: 6\nmax_body_bytes_total: 1MiB\n").find("max_body_bytes_total"),
            std::string::npos);
  EXPECT_NE(refused("max_sessions: 6\nname: ['a:b']\n").find("name 'a:b'"), std::string::npos);
  std::filesystem::remove(path_);
  EXPECT_NE(error_of([&] { file_.read(); }), "");
}

}  // namespace
}  // namespace twinkle::cli
