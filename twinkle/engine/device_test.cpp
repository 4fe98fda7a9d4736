#include "twinkle/engine/device.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"

namespace twinkle::engine {
namespace {

TEST(Device, ANameIsCpuOrCudaOrACudaWithItsNumber) {
  for (const char* name : {"cpu", "cuda", "cuda:0", "cuda:17"}) EXPECT_TRUE(is_device_name(name));
  for (const char* name :
       {"tpu", "CPU", "gpu", "", "cuda:", "cuda:x", "cuda:-1", "cuda1", "cpu:0"}) {
    EXPECT_FALSE(is_device_name(name)) << name;
    expect_error("engine: device is '" + std::string(name) +
                     "', it must be 'cpu', 'cuda' or 'cuda:' and a number",
                 [&] { device_named(name); });
  }
}

TEST(Device, TheDefaultIsACardThatAnEngineCanRunOnElseTheCpu) {
  const auto [name, why_no_cuda] = default_device();
  EXPECT_EQ(name, why_not_on("cuda").empty() ? "cuda" : "cpu");
  EXPECT_TRUE(name == "cpu" || why_no_cuda.empty());
}

}  // namespace
}  // namespace twinkle::engine
