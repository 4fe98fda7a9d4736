// The commands as the program runs them: arguments in, printed text and files out.
#include <gtest/gtest.h>

#include "twinkle/cli/command.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/text/tiny_model_test.h"

namespace twinkle::cli {

#define COMMAND(name) void name(CLI::App& app);
#include "twinkle/cli/commands.def"
#undef COMMAND

namespace {

namespace fs = std::filesystem;

// What a command prints. Errors pass.
std::string run(std::vector<std::string> arguments) {
  CLI::App app("", "twinkle");
  app.require_subcommand(1);
#define COMMAND(name) name(app);
#include "twinkle/cli/commands.def"
#undef COMMAND
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes a vector
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const auto printed = [] {
    std::fflush(stdout);
    testing::internal::GetCapturedStderr();
    return testing::internal::GetCapturedStdout();
  };
  try {
    app.parse(arguments);
  } catch (...) {
    printed();
    throw;
  }
  return printed();
}

// A model with weights for the tiny tokenizer of the text folder's tests.
class Commands : public testing::Test {
 protected:
  Commands() {
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
  std::string model() const { return tokenizer_.directory().string(); }
  std::string path(const char* name) const { return (scratch_ / name).string(); }

  const text::TinyModel tokenizer_;
  const ScratchDir scratch_;
};

TEST_F(Commands, InfoPrintsFamilySizesAndWeights) {
  EXPECT_EQ(run({"info", model()}),
            "family llama\n"
            "layers 2, width 48, heads 4 (2 for keys), head size 12\n"
            "vocabulary 300, positions 256\n"
            "weights 0.1 million in 20 tensors\n");
}

TEST_F(Commands, TrainWritesAnAdapterThatSampleTakes) {
  const std::string printed =
      run({"train", model(), path("rows.jsonl"), "--output", path("adapter"), "--rank", "2",
           "--epochs", "2", "--batch-size", "1", "--lr", "0.01"});
  EXPECT_EQ(printed, "\n" + path("adapter") + "\n");
  EXPECT_TRUE(fs::exists(scratch_ / "adapter" / "adapter_config.json"));
  EXPECT_EQ(get<int64_t>(read_json(scratch_ / "adapter" / "adapter_config.json"), "r"), 2);
  const std::vector<std::string> ask{"sample", model(), "a", "c", "--max-tokens", "3"};
  auto with = ask;
  with.insert(with.end(), {"--adapter", path("adapter")});
  for (const auto& arguments : {ask, with}) {
    const std::string answers = run(arguments);
    EXPECT_EQ(answers, run(arguments)) << "greedy";
    EXPECT_TRUE(answers.starts_with("> a\n")) << answers;
    EXPECT_NE(answers.find("\n\n> c\n"), std::string::npos) << answers;
  }
}

TEST_F(Commands, MistakesAreErrorsAndWriteNothing) {
  EXPECT_NE(error_of([&] {
              run({"train", model(), path("rows.jsonl"), "--rank", "0", "--output", path("out")});
            }).find("it must be an integer of at least 1"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              run({"train", model(), path("none.jsonl"), "--output", path("out")});
            }).find("none.jsonl"),
            std::string::npos);
  EXPECT_NE(error_of([&] { run({"sample", model(), "a", "--top-p", "0"}); }).find("top_p"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
  EXPECT_THROW(run({"train", model()}), CLI::ParseError);
  EXPECT_THROW(run({"info", model(), "--speed"}), CLI::ParseError);
  EXPECT_THROW(run({}), CLI::ParseError);
}

}  // namespace
}  // namespace twinkle::cli
