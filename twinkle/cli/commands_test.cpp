// The commands as the program runs them: arguments in, printed text and files out.
#include "twinkle/cli/train/commands_for_test.h"

namespace twinkle::cli {
namespace {

TEST_F(Commands, InfoPrintsFamilySizesAndWeights) {
  EXPECT_EQ(run({"info", model()}),
            "family llama\n"
            "layers 2, width 48, heads 4 (2 for keys), head size 12\n"
            "vocabulary 300, positions 256\n"
            "weights 0.1 million in 20 tensors\n");
}

TEST_F(Commands, TrainWritesAnAdapterThatSampleTakes) {
  const std::string printed =
      run({"train", model(), path("rows.jsonl"), "--output", path("run"), "--rank", "2", "--epochs",
           "2", "--batch-size", "1", "--lr", "0.01"});
  const std::string adapter = path("run/adapter");
  EXPECT_EQ(printed, "saved " + adapter +
                         "\nnote: 4 steps in all: too few to learn new facts; try --epochs 10\n"
                         "try it:  twinkle sample " +
                         model() + " a --adapter " + adapter + "\n     or:  twinkle chat " +
                         model() + " --adapter " + adapter + "\n");
  EXPECT_EQ(get<int64_t>(read_json(fs::path(adapter) / "adapter_config.json"), "r"), 2);
  const std::string card = read_text(fs::path(adapter) / "README.md");
  EXPECT_NE(card.find("- data: rows.jsonl, 2 rows\n"), card.npos) << card;
  const std::vector<std::string> ask{"sample", model(), "a", "c", "--max-tokens", "3"};
  auto with = ask;
  with.insert(with.end(), {"--adapter", adapter});
  for (const auto& arguments : {ask, with}) {
    const std::string answers = run(arguments);
    EXPECT_EQ(answers, run(arguments)) << "greedy";
    EXPECT_TRUE(answers.starts_with("> a\n")) << answers;
    EXPECT_NE(answers.find("\n\n> c\n"), std::string::npos) << answers;
  }
}

TEST_F(Commands, SamplePlainContinuesTextsWithoutAChatTemplate) {
  const std::string with = run({"sample", model(), "a", "--plain", "--max-tokens", "3"});
  tokenizer_.write("tokenizer_config.json", "{}");
  EXPECT_EQ(run({"sample", model(), "a", "--plain", "--max-tokens", "3"}), with);
  EXPECT_NE(
      error_of([this] { run({"sample", model(), "a"}); }).find("'twinkle sample' with --plain"),
      std::string::npos);
}

TEST_F(Commands, ADataFileInTheModelsPlaceIsNamed) {
  const std::string rows = path("rows.jsonl");
  EXPECT_EQ(error_of([&] { run({"train", rows, model(), "--output", path("out")}); }),
            "cli: " + rows + " is a data file; the model comes first: twinkle train " + model() +
                " " + rows);
}

TEST_F(Commands, NumbersOutOfRangeAreRefusedByTheirOptionsNames) {
  const auto train = [](const char* option, const char* value) {
    return wrong({"train", "model", "rows.jsonl", option, value});
  };
  const auto refused = [](const std::string& option, const std::string& value,
                          const std::string& must_be) {
    return option + " is '" + value + "', it must be " + must_be;
  };
  const auto count = [&](const std::string& option, const std::string& value, int least) {
    EXPECT_EQ(train(option.c_str(), value.c_str()),
              refused(option, value,
                      "an integer of at least " + std::to_string(least) + ", at most 2147483647"));
  };
  EXPECT_EQ(train("--rank", "4097"),
            refused("--rank", "4097", "an integer of at least 1, at most 4096"));
  for (const char* option : {"--epochs", "--batch-size", "--max-length"}) {
    for (const char* value : {"0", "2147483648"}) count(option, value, 1);
  }
  for (const char* option : {"--warmup-steps", "--save-steps"}) {
    for (const char* value : {"-1", "99999999999999999999"}) count(option, value, 0);
  }
  for (const char* value : {"0", "-1", "nan", "inf"})
    EXPECT_EQ(train("--alpha", value), refused("--alpha", value, "a number above 0"));
  for (const char* value : {"-1", "nan", "inf"})
    EXPECT_EQ(train("--lr", value), refused("--lr", value, "a number of at least 0"));
  for (const char* value : {"-1", "nan"}) {
    EXPECT_EQ(train("--max-grad-norm", value),
              refused("--max-grad-norm", value, "a number of at least 0 or 'inf'"));
  }
  EXPECT_EQ(train("--lr", "1e39"),
            "optim: lr of AdamW is 1e+39, it must be finite in float32, at most 3.40282e+38");
  for (const char* value : {"-1", "99999999999999999999", "1.5", "x"}) {
    const std::string error =
        refused("--seed", value, "an integer of at least 0, at most 18446744073709551615");
    EXPECT_EQ(train("--seed", value), error);
    EXPECT_EQ(wrong({"sample", "model", "a", "--seed", value}), error);
  }
  const std::string device =
      "cli: --device is 'tpu', it must be 'cpu', 'cuda' or 'cuda:' and a number";
  EXPECT_EQ(train("--device", "tpu"), device);
  EXPECT_EQ(wrong({"sample", "model", "a", "--device", "tpu"}), device);
  for (const char* option : {"--temperature", "--top-p", "--min-p"}) {
    std::string field = std::string(option).substr(2);
    std::replace(field.begin(), field.end(), '-', '_');
    const std::string error = wrong({"sample", "model", "a", option, "nan"});
    EXPECT_NE(error.find(field + " is nan"), std::string::npos) << error;
  }
}

TEST_F(Commands, TheGradientsNormMayBeInfinite) {
  const auto norm = [](const char* value) {
    return std::vector<std::string>{"train", "model", "rows.jsonl", "--max-grad-norm", value};
  };
  parse(norm("inf"), false);
  parse(norm("0"), false);
}

TEST_F(Commands, MaxTokensBeyondTheModelsRoomAreRefusedWhenGiven) {
  expect_error("cli: --max-tokens is 100000, after prompt 0 the model's context has room for ",
               [&] { run({"sample", model(), "a", "--max-tokens", "100000"}); });
  EXPECT_EQ(run({"sample", model(), std::string(200, 'a')}).substr(0, 3), "> a")
      << "the default is cut";
}

TEST_F(Commands, ARowBeyondTheModelsPositionsIsFoundBeforeTheTraining) {
  write_text(scratch_ / "long.jsonl", R"({"messages": [{"role": "user", "content": ")" +
                                          std::string(2000, 'a') +
                                          R"("}, {"role": "assistant", "content": "b"}]})");
  expect_error("tokens, the model has ", [&] {
    parse({"train", model(), path("rows.jsonl"), "--validation", path("long.jsonl"),
           "--validation-steps", "1", "--max-length", "4000", "--output", path("out")});
  });
  EXPECT_FALSE(fs::exists(path("out")));
}

TEST_F(Commands, AnOutputThatCannotBeSavedToIsFoundBeforeTheTraining) {
  // The output before the error has no step in it.
  const auto train = [this](const std::string& output) {
    testing::internal::CaptureStderr();
    std::string error = invalid_of(
        [&] { parse({"train", model(), path("rows.jsonl"), "--output", output, "--rank", "2"}); });
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    return error;
  };
  EXPECT_EQ(wrong({"train", model(), path("rows.jsonl"), "--output", ""}),
            "cli: --output is empty; name a folder, or leave it out");
  EXPECT_TRUE(train("/proc/x").starts_with("cli: --output /proc/x cannot be saved to: "));
  EXPECT_EQ(train(path("rows.jsonl")),
            "cli: --output " + path("rows.jsonl") + " is a file; name a directory");
  EXPECT_EQ(train(path("rows.jsonl/x")), "cli: --output " + path("rows.jsonl/x") +
                                             " is below the file " + path("rows.jsonl") +
                                             "; name a directory");
  EXPECT_EQ(train(path(std::string(300, 'n').c_str())),
            "cli: --output " + path(std::string(300, 'n').c_str()) +
                " has a name of 300 bytes, it must have at most 233; shorten it");
  EXPECT_EQ(train(model()),
            "cli: --output " + model() + " is the base model's own directory; name another");
  fs::create_directory(scratch_ / "mine");
  write_text(scratch_ / "mine" / "thesis.txt", "text");
  EXPECT_EQ(train(path("mine")), "cli: --output " + path("mine") +
                                     " holds 'thesis.txt', which is no file of a run; name a new "
                                     "folder");
  EXPECT_EQ(read_text(scratch_ / "mine" / "thesis.txt"), "text");
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), {}), 2) << "nothing is left";
}

TEST_F(Commands, AnEarlierRunIsReplacedOnlyWhenAsked) {
  std::vector<std::string> train{"train", model(), path("rows.jsonl"), "--output", path("run")};
  run(train);
  const fs::path adapter = scratch_ / "run" / "adapter";
  const std::string before = read_text(adapter / "adapter_model.safetensors");
  EXPECT_EQ(error_of([&] { run(train); }),
            "cli: --output " + path("run") +
                " holds a finished run; give --resume and more --epochs to train it longer, "
                "--overwrite to replace it, or name another folder");
  EXPECT_EQ(read_text(adapter / "adapter_model.safetensors"), before);
  fs::remove_all(adapter);
  EXPECT_EQ(error_of([&] { run(train); }),
            "cli: --output " + path("run") +
                " holds an interrupted run; give --resume to continue it, --overwrite to replace "
                "it, or name another folder");
  train.insert(train.end(), {"--overwrite", "--rank", "4"});
  run(train);
  EXPECT_EQ(get<int64_t>(read_json(adapter / "adapter_config.json"), "r"), 4);
  write_text(adapter / "README.md", "Mine.");
  EXPECT_NE(error_of([&] { run(train); }).find(" holds 'README.md', which is not a checkpoint"),
            std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch_.path()), {}), 2) << "nothing is left";
}

TEST_F(Commands, AnInterruptedTrainingGoesOnBitForBit) {
  const auto train = [this](const char* output, std::vector<std::string> more) {
    std::vector<std::string> all{"train", model(), path("rows.jsonl"), "--output", path(output)};
    const std::vector<std::string> same{"--epochs",       "100",  "--batch-size",  "1",
                                        "--lr",           "0.01", "--lr-schedule", "cosine",
                                        "--warmup-steps", "2"};
    all.insert(all.end(), same.begin(), same.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  run(train("whole", {}));
  const std::string error = interrupted_at_once(train("parts", {"--overwrite"}));
  const std::string holds = " of 200; " + path("parts") + " holds the state; to resume, type\n";
  EXPECT_TRUE(error.starts_with("cli: interrupted after step ")) << error;
  EXPECT_TRUE(error.ends_with(holds + "twinkle train --output " + path("parts") + " --resume"))
      << error;
  EXPECT_EQ(error_of([&] { run(train("parts", {"--resume", "--seed", "18446744073709551615"})); }),
            "cli: --resume: --seed is 18446744073709551615, that of the run in " + path("parts") +
                " is 42; give the same, or --overwrite to start again");
  const std::vector<std::string> resume{"train", "--output", path("parts"), "--resume"};
  run(resume);
  expect_same_adapter("parts", "whole");
  EXPECT_EQ(error_of([&] { run(resume); }),
            "cli: --resume: the run in " + path("parts") +
                " has taken 200 steps, and --epochs 100 are 200; give more --epochs to train it "
                "longer");
  EXPECT_EQ(
      error_of([&] { run({"train", "--output", path("parts"), "--resume", "--epochs", "101"}); }),
      "cli: --resume: --epochs is 101, that of the run in " + path("parts") +
          " is 100, and its --lr-schedule cosine has gone down to the end of these; only "
          "constant can be prolonged. Give the same, or --overwrite to start again");
  EXPECT_EQ(error_of([&] { run(train("nowhere", {"--resume"})); }),
            "cli: --output " + path("nowhere") +
                " has no state/trainer_state.json, so there is nothing to resume; name the folder "
                "of an earlier run, or leave --resume out");
}

TEST_F(Commands, AResumedTrainingPrintsTheDateThatItBeganWith) {
  // Nanoseconds, which are 0 of a time in seconds and never twice the same of the clock.
  tokenizer_.write("chat_template.jinja",
                   "{{ strftime_now('%S%f') }}" + std::string(text::kTinyChat));
  std::vector<std::string> train{"train",    model(), path("rows.jsonl"), "--output", path("out"),
                                 "--epochs", "100"};
  interrupted_at_once(train);
  train.emplace_back("--resume");
  EXPECT_TRUE(run(train).starts_with("saved "));
}

// The child ends without its destructors; its files are in this process's folder, which goes.
class CommandsDeathTest : public Commands {
 protected:
  CommandsDeathTest() {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    ::setenv("TMPDIR", scratch_.path().c_str(), 1);
  }
  ~CommandsDeathTest() override { ::setenv("TMPDIR", earlier_.c_str(), 1); }

 private:
  const std::string earlier_ = fs::temp_directory_path();
};

TEST_F(CommandsDeathTest, ASignalWhileAnInterruptedTrainingEndsTellsHowToResumeItToo) {
  const auto again = [this] {
    const std::jthread sender = interrupter();
    try {
      parse({"train", model(), path("rows.jsonl"), "--output", path("out"), "--epochs", "10000"});
    } catch (const Error&) {  // as program.cpp: the engine is closed, the error not yet told
      std::raise(SIGINT);
    }
  };
  EXPECT_EXIT(again(), testing::ExitedWithCode(1),
              "\ntwinkle: cli: interrupted after step [0-9]+ of 10000; .* holds the state; to "
              "resume, type\ntwinkle train .* --resume\n$");
}

TEST_F(CommandsDeathTest, ASignalAfterAFinishedTrainingSaysThatItIsSaved) {
  const auto late = [this] {
    parse({"train", model(), path("rows.jsonl"), "--output", path("out")});
    std::raise(SIGINT);
  };
  EXPECT_EXIT(late(), testing::ExitedWithCode(1),
              "\ntwinkle: interrupted after the run was finished and saved\n$");
}

TEST_F(Commands, OtherRowsAreNotTakenForThoseOfTheResumedRun) {
  std::vector<std::string> train{"train",    model(), path("rows.jsonl"), "--output", path("out"),
                                 "--epochs", "100"};
  interrupted_at_once(train);
  train[2] = path("others.jsonl");
  train.emplace_back("--resume");
  write_text(scratch_ / "others.jsonl", R"({"messages": [{"role": "user", "content": "a"}, )"
                                        R"({"role": "assistant", "content": "x"}]})");
  EXPECT_EQ(error_of([&] { run(train); }),
            "cli: --resume: the rows of " + path("others.jsonl") +
                " are not those that the run in " + path("out") +
                " was trained on; give its file, or --overwrite to start again");
}

TEST_F(Commands, ValidationRowsHaveTheirLossTold) {
  testing::internal::CaptureStderr();
  parse({"train", model(), path("rows.jsonl"), "--output", path("out"), "--batch-size", "1",
         "--epochs", "2", "--validation", path("rows.jsonl"), "--validation-steps", "3", "--lr",
         "0"});
  const std::string told = testing::internal::GetCapturedStderr();
  std::vector<std::string> losses;
  for (size_t at = 0; (at = told.find("validation loss ", at)) != told.npos; ++at)
    losses.push_back(told.substr(at, told.find('\n', at) - at));
  ASSERT_EQ(losses.size(), 2) << told;
  EXPECT_TRUE(losses[0].ends_with(" after step 3") && losses[1].ends_with(" after step 4")) << told;
  EXPECT_EQ(losses[0].substr(0, 22), losses[1].substr(0, 22)) << "a rate of 0 changes nothing";
  EXPECT_NE(told.find("step 4/4  loss "), told.npos) << told;
}

TEST_F(Commands, RowsOfAnotherFormGoThroughThePreprocessorThoseOfTheValidationToo) {
  write_text(scratch_ / "alpaca.jsonl", R"({"instruction": "a", "input": "b", "output": "c"})");
  const std::vector<std::string> train{
      "train",    model(),     path("alpaca.jsonl"), "--validation", path("alpaca.jsonl"),
      "--output", path("out"), "--preprocessor"};
  const auto with = [&train](const char* name) {
    auto all = train;
    all.emplace_back(name);
    return all;
  };
  EXPECT_TRUE(run(with("AlpacaProcessor")).starts_with("saved "));
}

TEST_F(Commands, PreprocessorsWhoseRowsCannotBeTrainedOnAreWrongArguments) {
  const auto with = [](const char* name) {
    return wrong({"train", "model", "rows.jsonl", "--preprocessor", name});
  };
  const std::string known =
      "', it must be one of AlpacaProcessor, CompetitionMathProcessor, PromptCompletionProcessor, "
      "ShareGPTProcessor";
  EXPECT_EQ(with("Alpaca"), "cli: --preprocessor is 'Alpaca" + known);
  EXPECT_EQ(with(""), "cli: --preprocessor is '" + known);
  EXPECT_EQ(with("EmojiDPOProcessor"),
            "cli: --preprocessor is EmojiDPOProcessor, it makes pairs of chats, for preference "
            "optimization: docs/preferences.md");
  for (const char* name : {"CLEVRProcessor", "CompetitionMathGRPOProcessor", "CountdownProcessor",
                           "GSM8KProcessor", "OlympiadBenchProcessor"}) {
    const std::string error = with(name);
    EXPECT_NE(error.find("prompts without replies"), error.npos) << error;
  }
  EXPECT_NE(with("SelfCognitionProcessor").find("model_name='Nova'"), std::string::npos);
}

TEST_F(Commands, ARowThatTeachesNothingIsRefusedByItsLineAndRemedy) {
  const auto refusal = [this](const std::string& second, const char* option = "--epochs",
                              const char* value = "1") {
    const std::string good = read_text(scratch_ / "rows.jsonl");
    write_text(scratch_ / "bad.jsonl", good.substr(0, good.find('\n') + 1) + second);
    const std::string error = error_of([&] {
      run({"train", model(), path("bad.jsonl"), "--output", path("out"), option, value});
    });
    EXPECT_FALSE(fs::exists(scratch_ / "out"));
    const std::string place = "data: " + path("bad.jsonl") + " line 2: ";
    EXPECT_TRUE(error.starts_with(place)) << error;
    return error.substr(std::min(place.size(), error.size()));
  };
  EXPECT_EQ(refusal(R"({"messages": [{"role": "judge", "content": "a"}]})"),
            "the row has no label to learn from: its messages have the roles judge, and only the "
            "assistant's replies are trained; add the reply (docs/training.md, Rows)");
  EXPECT_EQ(refusal(R"({"messages": [{"role": "system", "content": "a"}, )"
                    R"({"role": "user", "content": "b"}]})"),
            "the row has no label to learn from: its messages have the roles system, user, and "
            "only the assistant's replies are trained; add the reply (docs/training.md, Rows)");
  EXPECT_EQ(refusal(R"({"positive": {"messages": [{"role": "user", "content": "a"}]}})"),
            "the row holds several chats and no messages; pairs are for --loss dpo, see "
            "docs/preferences.md");
  const std::string chat = R"({"messages": [{"role": "user", "content": "a"}, )"
                           R"({"role": "assistant", "content": "b"}], )";
  EXPECT_TRUE(refusal(R"({"prompt": "a", "chosen": "b", "rejected": "c"})")
                  .starts_with("field 'rejected' is the worse one of a pair, "));
  EXPECT_EQ(refusal(chat + R"("rejected_response": "c"})"),
            "field 'rejected_response' is the worse one of a pair, which --loss dpo learns from; "
            "see docs/preferences.md, or leave the field out");
  for (const std::string verdict : {"false", "0", "\"FALSE\"", "true", "1", "\"True\""})
    for (const std::string name : {"label", "kto_tag"})
      EXPECT_EQ(refusal(chat + '"' + name + "\": " + verdict + '}'),
                "field '" + name + "' is " + verdict +
                    ", a verdict on the reply, and here every reply is learnt alike; learn from "
                    "verdicts with twinkle train --loss kto, or KTOLoss (docs/preferences.md), or "
                    "leave the field out");
  const std::string longer = R"({"messages": [{"role": "user", "content": "aaaaaaaaaaaaaaaaaa"}, )"
                             R"({"role": "assistant", "content": "b"}]})";
  const std::string error = refusal(longer, "--max-length", "30");
  EXPECT_TRUE(error.starts_with("the row has ")) << error;
  EXPECT_TRUE(error.ends_with(" tokens, --max-length is 30; raise it, or shorten the row"))
      << error;
}

TEST_F(Commands, ARowIsTrainedWhereItsLabelIsNoVerdict) {
  std::string rows;
  for (const char* label : {"0.5", "null", "\"news\"", "\"\"", "[]"})
    rows += R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", )"
            R"("content": "b"}], "label": )" +
            std::string(label) + "}\n";
  write_text(scratch_ / "labelled.jsonl", rows);
  EXPECT_TRUE(run({"train", model(), path("labelled.jsonl"), "--output", path("labelled")})
                  .starts_with("saved "));
}

TEST_F(Commands, ATurnOfAnyRoleThatTheModelsTemplateRendersIsTrainedWithTheReplies) {
  for (const std::string role : {"ipython", "observation"}) {
    write_text(scratch_ / "role.jsonl",
               R"({"messages": [{"role": "user", "content": "a"}, {"role": ")" + role +
                   R"(", "content": "1"}, {"role": "assistant", "content": "b"}]})");
    EXPECT_TRUE(run({"train", model(), path("role.jsonl"), "--output", path(role.c_str())})
                    .starts_with("saved "));
  }
}

// Standard error of a training.
std::string told_of(const std::vector<std::string>& train) {
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  parse(train);
  testing::internal::GetCapturedStdout();
  return testing::internal::GetCapturedStderr();
}

TEST_F(Commands, RowsOfAKnownFormAreTrainedAndSaidAsWhatTheyAreRead) {
  write_text(scratch_ / "turns.jsonl", R"({"messages": [{"role": "human", "content": "a"}, )"
                                       R"({"role": "gpt", "content": "b"}]})");
  write_text(scratch_ / "semi.csv", "\xEF\xBB\xBF\"Question\";Answer\r\na;4\r\n\"b;c\";\r\n");
  const auto train = [this](const char* file, const char* columns) {
    return std::vector<std::string>{"train", model(),    path(file),  "--columns",
                                    columns, "--output", path("out"), "--overwrite"};
  };
  EXPECT_TRUE(told_of(train("turns.jsonl", ""))
                  .starts_with(path("turns.jsonl") + ": messages: read as ShareGPTProcessor\n"));
  const std::string told = told_of(train("semi.csv", "Question=prompt,Answer=completion"));
  EXPECT_TRUE(told.starts_with(
      path("semi.csv") +
      ": separated by ';'; prompt, completion: read as PromptCompletionProcessor\n" +
      path("semi.csv") + ": 1 of 2 replies is empty\n"))
      << told;
  EXPECT_EQ(error_of([&] { run(train("semi.csv", "question=prompt")); }),
            "data: " + path("semi.csv") +
                " has no column 'question' to be named 'prompt'; there are Question, Answer");
  EXPECT_EQ(wrong({"train", model(), path("semi.csv"), "--columns", "Question"}),
            "data: columns is 'Question', it must be COLUMN=NAME,COLUMN=NAME, such as "
            "question=prompt,answer=completion");
}

TEST_F(Commands, FullTrainingWritesAModelThatSampleTakes) {
  const std::string printed = run(
      {"train", model(), path("rows.jsonl"), "--full", "--output", path("run"), "--lr", "0.01"});
  EXPECT_TRUE(printed.starts_with("saved " + path("run/model") + "\n")) << printed;
  EXPECT_TRUE(printed.ends_with("twinkle sample " + path("run/model") +
                                " a\n     or:  twinkle chat " + path("run/model") + "\n"))
      << printed;
  EXPECT_FALSE(fs::exists(scratch_ / "run" / "state")) << "several times the model";
  EXPECT_TRUE(run({"sample", path("run/model"), "a", "--max-tokens", "2"}).starts_with("> a\n"));
  EXPECT_THROW(run({"train", model(), path("rows.jsonl"), "--full", "--rank", "2"}),
               CLI::ExcludesError);
}

TEST_F(Commands, TheAdapterHasTheTargetsThatWereAskedFor) {
  run({"train", model(), path("rows.jsonl"), "--output", path("out"), "--target-modules",
       "q_proj,v_proj"});
  const Json config = read_json(scratch_ / "out" / "adapter" / "adapter_config.json");
  EXPECT_EQ(*find(config, "target_modules"), (JsonArray{"q_proj", "v_proj"}));
  EXPECT_EQ(get<std::string>(config, "base_model_name_or_path"), model());
  expect_error("nope_proj", [&] {
    run({"train", model(), path("rows.jsonl"), "--output", path("b"), "--target-modules",
         "nope_proj"});
  });
}

TEST_F(Commands, MistakesAreErrorsAndWriteNothing) {
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
  const std::string remedy = "; name a directory that 'twinkle train' or peft saved an adapter to";
  const auto sample = [this](const std::string& adapter) {
    return error_of([&] { run({"sample", "no such model", "a", "--adapter", adapter}); });
  };
  EXPECT_EQ(sample(path("none")), "cli: --adapter " + path("none") + " does not exist" + remedy);
  EXPECT_EQ(sample(model()),
            "cli: --adapter " + model() + " holds no adapter_config.json" + remedy);
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
  EXPECT_THROW(run({"train", model()}), CLI::ParseError);
  EXPECT_THROW(run({"info", model(), "--speed"}), CLI::ParseError);
  EXPECT_THROW(run({"train", model(), "rows.jsonl", "--overwrite", "--resume"}), CLI::ParseError);
  EXPECT_THROW(run({"train", model(), "rows.jsonl", "--validation-steps", "2"}), CLI::ParseError);
  EXPECT_THROW(run({"train", model(), "rows.jsonl", "--lr-schedule", "up"}), CLI::ParseError);
  EXPECT_THROW(run({}), CLI::ParseError);
}

}  // namespace
}  // namespace twinkle::cli
