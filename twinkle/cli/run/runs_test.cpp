// Runs of `twinkle train`: their folders, how they go on, and their objectives' options.
#include <sstream>

#include "twinkle/cli/train/commands_for_test.h"

namespace twinkle::cli {
namespace {

TEST_F(Commands, AFinishedRunIsProlongedBitForBit) {
  const auto train = [this](const char* output, const char* epochs) {
    return std::vector<std::string>{
        "train",        model(), path("rows.jsonl"), "--output", path(output), "--lr", "0.01",
        "--batch-size", "1",     "--warmup-steps",   "3",        "--epochs",   epochs};
  };
  run(train("long", "5"));
  run(train("short", "2"));
  run({"train", "--resume", "--output", path("short"), "--epochs", "5"});
  expect_same_adapter("short", "long");
  const auto steps = [this](const char* folder) {
    std::string out;
    std::istringstream lines(read_text(scratch_ / folder / "log.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const Json read = parse_json(line, "log.jsonl");
      out += std::to_string(get<int64_t>(read, "step")) + ": " +
             std::to_string(get<double>(read, "loss")) + "\n";
    }
    return out;
  };
  EXPECT_EQ(steps("short"), steps("long"));
}

TEST_F(Commands, ARunHasANewFolderNamedByItsDataAndItsOwnConfig) {
  const fs::path before = fs::current_path();
  fs::current_path(scratch_.path());
  const std::vector<std::string> train{"train", model(), "rows.jsonl", "--epochs", "1"};
  EXPECT_THROW(run({"train", model(), "none.jsonl"}), Error);
  EXPECT_FALSE(fs::exists("outputs"));
  run(train);
  run(train);
  EXPECT_EQ(fs::read_symlink("outputs/latest"), "rows-2");
  EXPECT_EQ(read_text("outputs/rows-1/config.yaml"), read_text("outputs/rows-2/config.yaml"));
  run({"train", "--config", "outputs/rows-1/config.yaml", "--seed", "43"});
  EXPECT_EQ(read_text("outputs/rows-1/log.jsonl").substr(0, 10), "{\"step\":1,");
  expect_same_adapter("outputs/rows-1", "outputs/rows-2");
  run({"train", "--resume", "--epochs", "2"});
  const std::string log = read_text("outputs/rows-3/log.jsonl");
  EXPECT_EQ(std::ranges::count(log, '\n'), 2) << log;
  write_text("bad.yaml", "model: x\nbatchsize: 2\n");
  EXPECT_EQ(error_of([&] { run({"train", "--config", "bad.yaml"}); }),
            "cli: bad.yaml:2: 'batchsize' is no key of `twinkle train`; did you mean "
            "'batch_size'?");
  fs::current_path(before);
}

// Stands in for Python. Rewards are 0 and 1; in the step that the file `fails` names they fail.
void write_rewards(const fs::path& folder) {
  const std::string tool = (folder / "python").string();
  write_text(tool, "#!/bin/sh\ncd " + folder.string() + R"sh(
[ "$3" = twinkle.reward.worker ] || exec cat > /dev/null
echo ok
n=0
while read -r line; do
  n=$((n + 1))
  if [ "$n" = "$(cat fails)" ]; then echo '{"error": "boom", "index": 0}'
  else echo '{"rewards": [0, 1]}'; fi
done
)sh");
  fs::permissions(tool, fs::perms::owner_all);
  ::setenv("TWINKLE_PYTHON", tool.c_str(), 1);
}

TEST_F(Commands, AnErrorAfterAStepSavesTheRunAndOneBeforeLeavesNone) {
  const fs::path before = fs::current_path();
  fs::current_path(scratch_.path());
  write_rewards(scratch_.path());
  write_text("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"c\"}\n");
  std::vector<std::string> train{"train",
                                 model(),
                                 "prompts.jsonl",
                                 "--loss",
                                 "grpo",
                                 "--reward",
                                 "r.py:f",
                                 "--lr",
                                 "0.01",
                                 "--epochs",
                                 "2",
                                 "--batch-size",
                                 "1",
                                 "--max-tokens",
                                 "3",
                                 "--num-generations",
                                 "2"};
  const auto failure = [&](const char* step) {
    write_text("fails", step);
    testing::internal::CaptureStderr();
    const std::string error = error_of([&] { parse(train); });
    return testing::internal::GetCapturedStderr() + error;
  };
  const std::string third = failure("3");
  EXPECT_NE(third.find("\noutputs/prompts-1 holds the state; to resume, type\ntwinkle train "
                       "--output outputs/prompts-1 --resume\n"
                       "cli: after step 2 of 4: --reward r.py:f: prompts.jsonl line "),
            third.npos)
      << third;
  EXPECT_TRUE(third.ends_with(": boom")) << third;
  const std::string first = failure("1");
  EXPECT_NE(first.find("cli: --reward r.py:f: prompts.jsonl line "), first.npos) << first;
  EXPECT_FALSE(fs::exists("outputs/prompts-2"));
  EXPECT_EQ(fs::read_symlink("outputs/latest"), "prompts-1");
  write_text("fails", "");
  run({"train", "--resume"});
  train.insert(train.end(), {"--output", "whole"});
  run(train);
  expect_same_adapter("outputs/prompts-1", "whole");
  const std::string log = read_text("whole/log.jsonl");
  EXPECT_TRUE(log.starts_with("{\"step\":1,\"epoch\":0.5,\"loss\":")) << log;
  EXPECT_EQ(log.find('E'), log.npos) << log;
  EXPECT_NE(log.find(",\"lr\":0.01,"), log.npos) << log;
  EXPECT_EQ(error_of([&] { run({"train", "--resume", "--output", "none"}); }),
            "cli: --resume: there is no run in none; name the folder of an earlier run by "
            "--output");
  fs::current_path(before);
}

TEST_F(Commands, AnOptionOfAnotherObjectiveIsRefusedByName) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"train", "model", "rows.jsonl"});
    return wrong(more);
  };
  EXPECT_EQ(with({"--beta", "0.1"}),
            "cli: --loss sft has no option 'beta'; leave it out, or give the --loss that has it");
  EXPECT_EQ(with({"--loss", "dpo", "--beta", "-1"}),
            "loss: beta is -1, it must be a number above 0");
  EXPECT_EQ(with({"--loss", "dpo", "--num-generations", "4"}),
            "cli: --num-generations is of --loss grpo, and --loss is dpo; leave it out");
  EXPECT_EQ(with({"--loss", "grpo"}), "cli: --loss is grpo, which needs --reward FILE.py:NAME");
  EXPECT_EQ(with({"--loss", "dpo", "--full"}),
            "cli: --loss dpo compares with the base model, which --full changes; leave --full out, "
            "or give --reference-free");
  EXPECT_EQ(with({"--loss", "kto", "--full"}),
            "cli: --loss kto compares with the base model, which --full changes; leave --full out");
  EXPECT_EQ(with({"--loss", "kto", "--baseline", "mean"}),
            "loss: baseline is 'mean', it must be 'mismatched' or 'zero'");
  EXPECT_EQ(with({"--loss", "simpo", "--desirable-weight", "2"}),
            "loss: SimPOLoss has no option 'desirable_weight', it has beta, gamma");
  EXPECT_EQ(with({"--loss", "cpo"}),
            "--loss is 'cpo', it must be 'sft', 'pretrain', 'dpo', 'orpo', 'simpo', 'kto', "
            "'reward' or 'grpo'");
}

}  // namespace
}  // namespace twinkle::cli
