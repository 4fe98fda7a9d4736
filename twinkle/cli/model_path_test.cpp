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

TEST(ModelPath, AModelIsNamedAsOthersKnowIt) {
  const ScratchDir dir;
  EXPECT_EQ(model_name(dir.path().string()), dir.path().string());
  EXPECT_EQ(model_name("hf://a/b"), "a/b");
  EXPECT_EQ(model_name("ms://a/b"), "a/b");
  EXPECT_EQ(model_name("SmolLM2"), "HuggingFaceTB/SmolLM2-135M-Instruct");
}

TEST(ModelPath, SaysThatTheHubToolCannotBeReached) {
  const LimitForTest tight(RLIMIT_NOFILE, 3);
  EXPECT_EQ(error_of([] { model_path("no-such/model"); }),
            "cli: cannot create a pipe for the hub tool");
}

}  // namespace
}  // namespace twinkle::cli
