#include "twinkle/cli/model_path.h"

#include <gtest/gtest.h>

#include "twinkle/io/limit_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::cli {
namespace {

TEST(ModelPath, APathIsItsOwnAnswerAndAnUnknownIdIsAnError) {
  const ScratchDir dir;
  EXPECT_EQ(model_path(dir.path().string()), dir.path().string());
  ::setenv("TWINKLE_PYTHON", "/bin/false", 1);
  EXPECT_NE(
      error_of([] { model_path("no-such/model"); }).find("'no-such/model' is not a path here"),
      std::string::npos);
  ::unsetenv("TWINKLE_PYTHON");
}

TEST(ModelPath, WhatTheHubToolSaysIsTheErrorAndSaidOnce) {
  const ScratchDir dir;
  const std::string tool = (dir / "python").string();
  write_text(tool,
             "#!/bin/sh\ntest \"$1 $5\" = '-P --errors-on-stdout' && echo \"hub: $6\"; exit 1\n");
  std::filesystem::permissions(tool, std::filesystem::perms::owner_all);
  ::setenv("TWINKLE_PYTHON", tool.c_str(), 1);
  testing::internal::CaptureStderr();
  EXPECT_EQ(error_of([] { model_path("no such"); }), "cli: model 'no such': no such");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ::unsetenv("TWINKLE_PYTHON");
}

TEST(DataPath, FilesOfRowsAreTheirOwnAnswerAndTheHubToolFindsTheRest) {
  const ScratchDir dir;
  const std::string tool = (dir / "python").string(), rows = (dir / "a.JSONL").string();
  write_text(tool, "#!/bin/sh\ntest \"$3\" = twinkle.dataset.fetch && echo \"/cache/$6\"\n");
  std::filesystem::permissions(tool, std::filesystem::perms::owner_all);
  write_text(rows, "");
  ::setenv("TWINKLE_PYTHON", tool.c_str(), 1);
  EXPECT_EQ(data_path(rows), rows);
  EXPECT_EQ(data_path("none.csv"), "none.csv") << "its reader says that it is not there";
  EXPECT_EQ(data_path("hf://a/b"), "/cache/hf://a/b");
  EXPECT_EQ(data_path(dir.path().string()), dir.path().string());
  write_text(dir / "b.parquet", "");
  EXPECT_EQ(data_path(dir.path().string()), "/cache/" + dir.path().string());
  EXPECT_EQ(data_path((dir / "b.parquet").string()), "/cache/" + (dir / "b.parquet").string());
  ::setenv("TWINKLE_DATASET_ID_ALIASES", "none.csv=/elsewhere", 1);
  EXPECT_EQ(data_path("none.csv"), "/cache/none.csv");
  ::unsetenv("TWINKLE_DATASET_ID_ALIASES");
  ::setenv("TWINKLE_PYTHON", "/bin/false", 1);
  EXPECT_EQ(error_of([] { data_path("hf://a/b"); }),
            "cli: data 'hf://a/b' is not a path here, and the hub tool, /bin/false -m "
            "twinkle.dataset.fetch, failed");
  ::unsetenv("TWINKLE_PYTHON");
}

TEST(ModelPath, APathThatTheSystemRefusesIsLeftToTheReaderWhoseErrorNamesIt) {
  const ScratchDir dir;
  const std::string loop = (dir / "loop").string();
  std::filesystem::create_symlink(loop, loop);
  for (const std::string& path : {loop, std::string(300, 'n')}) {
    EXPECT_EQ(model_path(path), path);
    EXPECT_EQ(model_name(path), path);
  }
}

TEST(ModelPath, TheDirectoryOfAnAdapterIsToldFromAModels) {
  const ScratchDir dir;
  const std::string path = dir.path().string();
  write_text(dir / "adapter_config.json", "{}");
  EXPECT_EQ(error_of([&] { model_path(path); }),
            "cli: model '" + path +
                "' is the directory of an adapter; give as MODEL the model that it was trained "
                "on, and the adapter to 'twinkle sample' as --adapter " +
                path);
  write_text(dir / "config.json", "{}");
  EXPECT_EQ(model_path(path), path);
}

TEST(ModelPath, TheFolderOfARunIsNoAdapterButHoldsOne) {
  const ScratchDir dir;
  const std::string path = dir.path().string();
  EXPECT_EQ(
      error_of([&] { check_adapter(path); }),
      "cli: --adapter " + path +
          " holds no adapter_config.json; name a directory that 'twinkle train' or peft saved "
          "an adapter to");
  std::filesystem::create_directory(dir / "adapter");
  write_text(dir / "adapter/adapter_config.json", "{}");
  EXPECT_EQ(error_of([&] { check_adapter(path); }),
            "cli: --adapter " + path + " holds no adapter_config.json; give the run's, " + path +
                "/adapter");
}

TEST(ModelPath, AModelIsNamedAsOthersKnowIt) {
  const ScratchDir dir;
  EXPECT_EQ(model_name(dir.path().string()), dir.path().string());
  EXPECT_EQ(model_name("hf://a/b"), "a/b");
  EXPECT_EQ(model_name("ms://a/b"), "a/b");
  EXPECT_EQ(model_name("SmolLM2"), "smollm2-q4_1");
}

TEST(ModelPath, SaysThatTheHubToolCannotBeReached) {
  const LimitForTest tight(RLIMIT_NOFILE, 3);
  EXPECT_EQ(error_of([] { model_path("no-such/model"); }),
            "cli: cannot create a pipe for the hub tool");
}

}  // namespace
}  // namespace twinkle::cli
