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

void parse(std::vector<std::string> arguments) {
  CLI::App app("", "twinkle");
  app.require_subcommand(1);
#define COMMAND(name) name(app);
#include "twinkle/cli/commands.def"
#undef COMMAND
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes a vector
  app.parse(arguments);
}

// What a command prints. Errors pass.
std::string run(const std::vector<std::string>& arguments) {
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

TEST_F(Commands, NumbersOutOfRangeAreRefusedByTheirOptionsNames) {
  const auto train = [this](const char* option, const char* value) {
    return error_of([&] {
      run({"train", model(), path("rows.jsonl"), "--output", path("out"), option, value});
    });
  };
  for (const char* value : {"0", "-1", "nan", "inf"}) {
    EXPECT_EQ(train("--alpha", value),
              "cli: --alpha is " + std::string(value) + ", it must be above 0 and finite");
  }
  for (const char* value : {"-1", "nan", "inf"}) {
    EXPECT_EQ(train("--lr", value),
              "cli: --lr is " + std::string(value) + ", it must be at least 0 and finite");
  }
  for (const char* value : {"-1", "nan"}) {
    EXPECT_EQ(train("--max-grad-norm", value),
              "cli: --max-grad-norm is " + std::string(value) +
                  ", it must be at least 0; 0 and inf do not clip");
  }
  EXPECT_EQ(train("--lr", "1e39"),
            "optim: lr of AdamW is 1e+39, it must be finite in float32, at most 3.40282e+38");
  for (const char* value : {"-1", "99999999999999999999", "1.5", "x"}) {
    const std::string error = "cli: --seed is " + std::string(value) +
                              ", it must be an integer from 0 to 18446744073709551615";
    EXPECT_EQ(train("--seed", value), error);
    EXPECT_EQ(error_of([&] { run({"sample", model(), "a", "--seed", value}); }), error);
  }
  for (const char* option : {"--temperature", "--top-p", "--min-p"}) {
    std::string field = std::string(option).substr(2);
    std::replace(field.begin(), field.end(), '-', '_');
    expect_error(field + " is nan", [&] { run({"sample", model(), "a", option, "nan"}); });
  }
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
}

TEST_F(Commands, MaxTokensBeyondTheModelsRoomAreRefusedWhenGiven) {
  expect_error("cli: --max-tokens is 100000, behind prompt 0 the model's positions leave room for ",
               [&] { run({"sample", model(), "a", "--max-tokens", "100000"}); });
  EXPECT_EQ(run({"sample", model(), std::string(200, 'a')}).substr(0, 3), "> a")
      << "the default is cut";
}

TEST_F(Commands, AnOutputThatCannotBeSavedToIsFoundBeforeTheTraining) {
  // What is printed before the error has no step in it.
  const auto train = [this](const std::string& output) {
    testing::internal::CaptureStderr();
    std::string error = invalid_of(
        [&] { parse({"train", model(), path("rows.jsonl"), "--output", output, "--rank", "2"}); });
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    return error;
  };
  EXPECT_EQ(train(""), "cli: --output is empty; name a directory");
  EXPECT_TRUE(train("/proc/x").starts_with("cli: --output /proc/x cannot be saved to: "));
  EXPECT_EQ(train(path("rows.jsonl")),
            "cli: --output " + path("rows.jsonl") + " is a file; name a directory");
  EXPECT_EQ(train(path("rows.jsonl/x")), "cli: --output " + path("rows.jsonl/x") +
                                             " lies below the file " + path("rows.jsonl") +
                                             "; name a directory");
  EXPECT_EQ(train(path(std::string(300, 'n').c_str())),
            "cli: --output " + path(std::string(300, 'n').c_str()) +
                " has a name of 300 bytes, it must have at most 233; shorten it");
  EXPECT_EQ(train(model()),
            "cli: --output " + model() + " is the base model's own directory; name another");
  fs::create_directory(scratch_ / "mine");
  write_text(scratch_ / "mine" / "thesis.txt", "text");
  EXPECT_EQ(train(path("mine")), "cli: --output " + path("mine") +
                                     " holds 'thesis.txt', which is no checkpoint's file, and a "
                                     "save replaces the whole directory; name a new directory");
  EXPECT_EQ(read_text(scratch_ / "mine" / "thesis.txt"), "text");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), {}), 2) << "nothing is left";
}

TEST_F(Commands, AnAdapterMayBeReplacedByTheNextTraining) {
  for (const char* rank : {"2", "4"}) {
    run({"train", model(), path("rows.jsonl"), "--output", path("adapter"), "--rank", rank});
    EXPECT_EQ(get<int64_t>(read_json(scratch_ / "adapter" / "adapter_config.json"), "r"),
              std::stoi(rank));
    write_text(scratch_ / "adapter" / "trainer_state.json", "{}");
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), {}), 2) << "nothing is left";
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
  write_text(scratch_ / "empty.jsonl", "");
  EXPECT_NE(error_of([&] {
              run({"train", model(), path("empty.jsonl"), "--output", path("out")});
            }).find("empty.jsonl has no rows to train on"),
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
