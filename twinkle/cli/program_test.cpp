#include "twinkle/cli/program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <utility>
#include <vector>

#include "twinkle/io/scratch_dir_for_test.h"
#include "twinkle/store/folder_lock.h"

namespace twinkle::cli {
namespace {

// Exit status and what went to standard error.
std::pair<int, std::string> run_words(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "twinkle");
  testing::internal::CaptureStderr();
  const int status = run_program(static_cast<int>(arguments.size()), arguments.data(), "1.2");
  return {status, testing::internal::GetCapturedStderr()};
}

TEST(Program, AnUnknownSubcommandIsNamedWithThoseThatThereAre) {
  const std::string required =
      "A subcommand is required: backup, chat, eval, export, info, keys, merge, restore, sample, "
      "serve, train, usage; --help says more\n";
  EXPECT_EQ(run_words({}), std::pair(2, "twinkle: cli: " + required));
  for (const std::string word : {"foo", "--foo"}) {
    EXPECT_EQ(run_words({word.c_str()}),
              std::pair(2, "twinkle: cli: '" + word + "' is not a subcommand. " + required));
  }
}

TEST(Program, WrongArgumentsEndWith2AndWrongInputWith1AndBothNameTheProgram) {
  EXPECT_EQ(
      run_words({"info"}),
      std::pair(2, std::string("twinkle: cli: model is required; 'twinkle info --help' lists the "
                               "arguments\n")));
  for (const std::vector<const char*>& wrong :
       {std::vector{"train", "model", "rows", "--rank", "x"},
        {"train", "model", "rows", "--rank", "0"},
        {"train", "model", "rows", "--seed", "x"},
        {"sample", "model", "hi", "--top-p", "0"},
        {"info", "model", "--speed"}}) {
    const auto [status, text] = run_words(wrong);
    EXPECT_EQ(status, 2) << text;
    EXPECT_TRUE(text.starts_with("twinkle: ")) << text;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
  const auto [status, text] = run_words({"info", "/dev"});
  EXPECT_EQ(status, 1);
  EXPECT_TRUE(text.starts_with("twinkle: ")) << text;
}

// Whatever the state is and the model's files are.
TEST(Program, OptionsThatCannotBeAreWrongArgumentsInAFileToo) {
  const ScratchDir dir;
  write_text(dir / "serve.yaml", "root_path: x\n");
  const std::string file = (dir / "serve.yaml").string(), no_file = (dir / "no.yaml").string();
  for (const std::vector<const char*>& wrong :
       {std::vector{"serve", "--root-path", "x"},
        {"serve", "--name", ""},
        {"serve", "--max-queued", "500", "--check"},
        {"serve", "--host", "somewhere"},
        {"serve", "--state", ""},
        {"serve", "--config", file.c_str()},
        {"serve", "--config", no_file.c_str()},
        {"keys", "create", "--tenant", ""},
        {"keys", "create", "--tenant", "a", "--scope", "admin"},
        {"keys", "create", "--tenant", "a", "--expires", "soon"},
        {"keys", "limit", "--tenant", "a"},
        {"keys", "limit", "--tenant", "a", "--compute-seconds-per-minute", "1e-9"},
        {"keys", "revoke"},
        {"keys", "list", "--state", ""}}) {
    const auto [status, text] = run_words(wrong);
    EXPECT_EQ(status, 2) << text;
    EXPECT_TRUE(text.starts_with("twinkle: ")) << text;
  }
  const std::string nothing = (dir / "nothing").string();
  for (const std::vector<const char*>& right :
       {std::vector{"keys", "list", "--state", nothing.c_str()},
        {"backup", file.c_str(), "--state", nothing.c_str()},
        {"serve", "--model", nothing.c_str(), "--state", nothing.c_str(), "--check"}})
    EXPECT_EQ(run_words(right).first, 1);
  EXPECT_FALSE(std::filesystem::exists(nothing));
}

TEST(Program, ACopyOfNoFolderOrIntoNoneIsRefusedByName) {
  const std::string must = " is '', it must be the path of a folder\n";
  for (const char* command : {"backup", "restore"}) {
    EXPECT_EQ(run_words({command, ""}), std::pair(2, "twinkle: cli: folder" + must));
    EXPECT_EQ(run_words({command, "x", "--state", ""}),
              std::pair(2, "twinkle: cli: --state" + must));
  }
}

TEST(Program, TheStateOfAServerThatRunsIsNoBackup) {
  const ScratchDir dir;
  const std::string state = (dir / "state").string(), copy = (dir / "copy").string();
  std::filesystem::create_directories(dir / "state/journal");
  const FileHandle server = store::lock_folder(dir / "state/journal");
  EXPECT_EQ(
      run_words({"restore", state.c_str(), "--state", copy.c_str()}),
      std::pair(1, "twinkle: cli: " + state + " is the state of a server that runs, process " +
                       std::to_string(::getpid()) +
                       ", and no backup; make one by 'twinkle backup FOLDER --state " + state +
                       "'\n"));
  EXPECT_FALSE(std::filesystem::exists(copy));
}

TEST(Program, AMisspeltOptionIsAnsweredWithTheOneThatWasProbablyMeant) {
  const std::string help = " --help' lists the arguments\n",
                    help_all = " --help-all' lists the arguments\n";
  EXPECT_EQ(run_words({"serve", "--prot", "80"}),
            std::pair(2,
                      "twinkle: cli: there is no option '--prot'; did you mean '--port'?; not "
                      "expected: --prot 80; 'twinkle serve" +
                          help_all));
  EXPECT_EQ(run_words({"serve", "--modle", "x", "--nmae=y", "z"}),
            std::pair(2,
                      "twinkle: cli: there is no option '--modle'; did you mean '--model'?; not "
                      "expected: --modle x --nmae=y z; 'twinkle serve" +
                          help_all));
  EXPECT_EQ(run_words({"serve", "x"}),
            std::pair(2, "twinkle: cli: not expected: x; 'twinkle serve" + help_all));
  for (const std::vector<const char*>& wrong : {std::vector{"train", "model", "rows", "--epoch=1"},
                                                {"keys", "create", "--tennant", "a"},
                                                {"info", "model", "--helpp"}}) {
    const auto [status, text] = run_words(wrong);
    EXPECT_EQ(status, 2) << text;
    EXPECT_NE(text.find("; did you mean '--"), std::string::npos) << text;
  }
  EXPECT_EQ(run_words({"info", "model", "--wholly-another"}),
            std::pair(2,
                      "twinkle: cli: there is no option '--wholly-another'; not expected: "
                      "--wholly-another; 'twinkle info" +
                          help));
}

TEST(Program, AWrongValueIsToldWithTheHelpOfTheInnermostCommand) {
  EXPECT_EQ(run_words({"keys", "create", "--tenant", "a", "--weight", "x"}),
            std::pair(2, std::string("twinkle: cli: --weight: 'x' must be a number of at least "
                                     "0.001, at most 1000; 'twinkle keys create --help' lists the "
                                     "arguments\n")));
}

// Standard output of arguments that ask for help.
std::string help(const std::vector<const char*>& command, const char* flag = "--help") {
  std::vector<const char*> arguments = command;
  arguments.push_back(flag);
  testing::internal::CaptureStdout();
  EXPECT_EQ(run_words(arguments), std::pair(0, std::string()));
  return testing::internal::GetCapturedStdout();
}

// Lines that begin with an option.
int64_t num_options(const std::string& text) {
  int64_t out = 0;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    out += line.starts_with("  --") || line.starts_with("  -h,");
  return out;
}

TEST(Program, HelpOfACommandOfManyOptionsTellsADozenInALineEachAndHelpAllTellsAll) {
  for (const char* command : {"serve", "train"}) {
    const std::string text = help({command}), all = help({command}, "--help-all");
    EXPECT_LE(num_options(text), 16) << text;
    EXPECT_GE(num_options(text), 12) << text;
    EXPECT_GT(num_options(all), 30) << all;
    EXPECT_NE(text.find("--help-all "), text.npos) << "--help tells where the others are";
    EXPECT_NE(text.find("--config "), text.npos) << text;
    EXPECT_EQ(text.find("More options"), text.npos);
  }
  const std::string text = help({"serve"});
  EXPECT_NE(text.find("bytes of memory for the state of all adapters; ...\n"), text.npos) << text;
  EXPECT_EQ(text.find("--give-again-seconds"), text.npos);
  for (const char* command : {"backup", "chat", "eval", "export", "info", "merge", "sample"})
    EXPECT_LE(num_options(help({command})), 21) << command << ": shorten_help()";
}

TEST(Program, HelpExplainsMODELWhereOneIsTakenAlone) {
  for (const std::vector<const char*>& takes : {std::vector<const char*>{},
                                                {"chat"},
                                                {"eval"},
                                                {"export"},
                                                {"info"},
                                                {"merge"},
                                                {"sample"},
                                                {"serve"},
                                                {"train"}})
    EXPECT_NE(help(takes).find("MODEL is 'smollm2'"), std::string::npos) << help(takes);
  for (const std::vector<const char*>& takes_none :
       {std::vector{"backup"}, {"restore"}, {"keys"}, {"keys", "create"}})
    EXPECT_EQ(help(takes_none).find("MODEL"), std::string::npos) << help(takes_none);
  for (const std::vector<const char*>& any :
       {std::vector<const char*>{}, {"info"}, {"keys", "list"}})
    EXPECT_NE(help(any).find("Exit status: 0 done"), std::string::npos) << help(any);
  const std::string all = help({"serve"}, "--help-all");
  EXPECT_NE(all.find("  --deterministic,--no-deterministic [on]\n"), std::string::npos);
  EXPECT_EQ(all.find("{false}"), std::string::npos);
  EXPECT_NE(help({"serve"}).find("  --auth keys|open "), std::string::npos)
      << "each start finds it";
}

TEST(ProgramDeathTest, ASignalAfterItsLastWordsEndsItWith1) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto late = [] {
    const char* arguments[] = {"twinkle", "info", "/dev"};
    run_program(3, arguments, "1.2");
    std::raise(SIGINT);
  };
  EXPECT_EXIT(late(), testing::ExitedWithCode(1), "twinkle: .*\ntwinkle: interrupted\n$");
}

// With standard output there; its file is closed.
std::pair<int, std::string> run_into(int file, const std::vector<const char*>& words) {
  std::fflush(stdout);
  const int kept = ::dup(STDOUT_FILENO);
  ::dup2(file, STDOUT_FILENO);
  ::close(file);
  auto out = run_words(words);
  ::dup2(kept, STDOUT_FILENO);
  ::close(kept);
  std::clearerr(stdout);
  return out;
}

TEST(Program, OutputThatIsNotTakenIsAnError) {
  const int full = ::open("/dev/full", O_WRONLY);
  ASSERT_GE(full, 0);
  EXPECT_EQ(
      run_into(full, {"--version"}),
      std::pair(1, std::string("twinkle: cli: standard output could not take all output; is its "
                               "disk full?\n")));
}

TEST(Program, APipeThatItsReaderHasClosedIsNoFullDisk) {
  const auto before = std::signal(SIGPIPE, SIG_IGN);  // as from Python, which ignores it
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  EXPECT_EQ(run_into(ends[1], {"serve", "--print-config"}), std::pair(1, std::string()));
  std::signal(SIGPIPE, before);
}

}  // namespace
}  // namespace twinkle::cli
