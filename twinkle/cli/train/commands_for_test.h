// For tests: the commands as the program runs them, over a tiny model and two rows.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/cli/command.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::cli {

namespace fs = std::filesystem;

#define COMMAND(name) void name(CLI::App& app, Action& action);
#include "twinkle/cli/commands.def"
#undef COMMAND

inline void parse(std::vector<std::string> arguments, bool run = true) {
  CLI::App app("", "twinkle");
  app.require_subcommand(1);
  Action action;
#define COMMAND(name) name(app, action);
#include "twinkle/cli/commands.def"
#undef COMMAND
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes a vector
  app.parse(arguments);
  if (run) action("twinkle");
}

// The error of arguments that are wrong whatever the files are.
inline std::string wrong(const std::vector<std::string>& arguments) {
  const auto attempt = [&] {
    try {
      parse(arguments, false);
    } catch (const CLI::ValidationError& e) {
      fail(Code::kInvalid, e.what());
    }
  };
  return invalid_of(attempt);
}

// The output of a command. Errors pass.
inline std::string run(const std::vector<std::string>& arguments) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto printed = [] {
    std::fflush(stdout);
    testing::internal::GetCapturedStderr();
    return testing::internal::GetCapturedStdout();
  };
  try {
    parse(arguments);
  } catch (...) {
    printed();
    throw;
  }
  return printed();
}

// Sends a SIGINT as soon as a command handles one.
inline std::jthread interrupter() {
  std::signal(SIGINT, SIG_DFL);
  return std::jthread([](const std::stop_token& stop) {
    struct sigaction now = {};
    do {
      if (stop.stop_requested()) return;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      ::sigaction(SIGINT, nullptr, &now);
    } while (now.sa_handler == SIG_DFL);
    ::kill(::getpid(), SIGINT);
  });
}

// The error of a command that gets a SIGINT as soon as it handles one.
inline std::string interrupted_at_once(const std::vector<std::string>& arguments) {
  const std::jthread sender = interrupter();
  return error_of([&] { run(arguments); });
}

// A model with weights for the tiny tokenizer of the text folder's tests.
class Commands : public testing::Test {
 protected:
  Commands() {
    ::setenv("TWINKLE_PYTHON", "true", 1);  // draws no curves
    JsonObject config = model::tiny_config();
    config["vocab_size"] = 300;
    config["eos_token_id"] = 259;
    model::write_tiny(tokenizer_.directory(), config, model::tiny_weights(config));
    write_text(scratch_ / "rows.jsonl", R"({"messages": [{"role": "user", "content": "a"}, )"
                                        R"({"role": "assistant", "content": "bb"}]})"
                                        "\n"
                                        R"({"messages": [{"role": "user", "content": "c"}, )"
                                        R"({"role": "assistant", "content": "dd"}]})"
                                        "\n");
  }
  ~Commands() override {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, SIG_DFL);
  }
  std::string model() const { return tokenizer_.directory().string(); }
  std::string path(const char* name) const { return (scratch_ / name).string(); }
  void expect_same_adapter(const char* run, const char* other) const {
    for (const char* file : {"adapter_model.safetensors", "adapter_config.json"})
      EXPECT_EQ(read_text(scratch_ / run / "adapter" / file),
                read_text(scratch_ / other / "adapter" / file))
          << file;
  }

  const text::TinyModel tokenizer_;
  const ScratchDir scratch_;
};

}  // namespace twinkle::cli
