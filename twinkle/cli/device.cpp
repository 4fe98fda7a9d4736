#include "twinkle/cli/device.h"

#include <cstdio>
#include <cstdlib>

#include "twinkle/base/error.h"
#include "twinkle/engine/device.h"

namespace twinkle::cli {
namespace {

void check(const char* from, const std::string& name) {
  require(engine::is_device_name(name), Code::kInvalid, "cli: ", from, " is '", name,
          "', it must be ", engine::kDeviceNames);
}

}  // namespace

void add_device(CLI::App& command, std::string& device) {
  const auto take = [&device](const std::string& name) {
    check("--device", name);
    device = name;
  };
  command.add_option_function<std::string>(
      "--device", take, "cpu, cuda or cuda:N [TWINKLE_DEVICE, else a GPU where there is one]");
}

std::string device_or_default(const std::string& given) {
  if (!given.empty()) {
    check("--device", given);
    return given;
  }
  const char* named = std::getenv("TWINKLE_DEVICE");
  if (named != nullptr && *named != '\0') {
    check("TWINKLE_DEVICE", named);
    return named;
  }
  const auto [device, why_no_cuda] = engine::default_device();
  if (!why_no_cuda.empty())
    std::fprintf(stderr, "twinkle: %s; using the CPU\n", why_no_cuda.c_str());
  return device;
}

}  // namespace twinkle::cli
