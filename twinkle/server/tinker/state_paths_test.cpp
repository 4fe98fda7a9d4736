#include "twinkle/server/tinker/state_paths.h"

#include <gtest/gtest.h>

#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

const std::string kRun = "4e5f:train:0";

TEST(StatePaths, ACheckpointIsToldByItsTinkerPathWhicheverOfItsFilesIsNamed) {
  const StatePaths paths("/srv/my state");
  const std::string folder = "/srv/my state/checkpoints/" + kRun, path = "tinker://" + kRun;
  const auto told = [&](const std::string& text) { return paths.told(text)->text; };
  EXPECT_EQ(told("json: cannot open " + folder + "/weights/a/adapter_config.json: No such file"),
            "json: cannot open " + path + "/weights/a: No such file");
  EXPECT_EQ(told("io: cannot write more than 0 bytes of " + folder +
                 "/sampler_weights/.a.b.partial-0123456789ab/adapter_model.safetensors: No space "
                 "left on device"),
            "io: cannot write more than 0 bytes of " + path +
                "/sampler_weights/a.b: No space left on device");
  EXPECT_EQ(told(folder + "/weights/a@17, '" + folder + "/weights/b'"),
            path + "/weights/a, '" + path + "/weights/b'");
  EXPECT_EQ(paths.told("x " + folder + "/weights/a@17 " + folder + "/weights/b")->first,
            path + "/weights/a");
}

TEST(StatePaths, AnotherFileIsToldByItsPlaceInTheStateAndOtherTextsAreNone) {
  const StatePaths paths("/srv/state");
  EXPECT_EQ(paths.told("no /srv/state/snapshots/" + kRun + "/version-2/null")->text,
            "no snapshots/" + kRun + "/version-2/null");
  EXPECT_EQ(paths.told("no /srv/state/checkpoints: gone")->text, "no checkpoints: gone");
  EXPECT_FALSE(paths.told("lora: rank is 0; see /srv/states/a"));
}

TEST(StatePaths, AStateBehindALinkIsKnownByBothOfItsPaths) {
  const ScratchDir dir;
  fs::create_directories(dir / "x/y");
  fs::create_directory_symlink(dir / "x/y", dir / "y");
  const StatePaths paths(dir / "y");
  for (const char* state : {"y", "x/y"})
    EXPECT_EQ(paths.told("no " + (dir / state / "snapshots").string())->text, "no snapshots");
}

}  // namespace
}  // namespace twinkle::server
