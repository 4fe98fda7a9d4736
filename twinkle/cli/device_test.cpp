#include "twinkle/cli/device.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "twinkle/base/error_for_test.h"

namespace twinkle::cli {
namespace {

TEST(Device, TheOptionComesBeforeTheEnvironmentAndThatBeforeTheMachine) {
  ::setenv("TWINKLE_DEVICE", "cpu", 1);
  EXPECT_EQ(device_or_default("cuda:1"), "cuda:1");
  EXPECT_EQ(device_or_default(""), "cpu");
  ::setenv("TWINKLE_DEVICE", "tpu", 1);
  expect_error("cli: TWINKLE_DEVICE is 'tpu', it must be 'cpu', 'cuda' or 'cuda:' and a number",
               [] { device_or_default(""); });
  ::setenv("TWINKLE_DEVICE", "", 1);
  const std::string machines = device_or_default("");
  EXPECT_TRUE(machines == "cpu" || machines == "cuda") << machines;
  ::unsetenv("TWINKLE_DEVICE");
}

}  // namespace
}  // namespace twinkle::cli
