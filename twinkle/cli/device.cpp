#include "twinkle/cli/device.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "twinkle/base/error.h"
#include "twinkle/engine/execute/model_info.h"

namespace twinkle::cli {

void add_device(CLI::App& command, std::string& device) {
  command.add_option("--device", device,
                     "cpu, cuda or cuda:N [TWINKLE_DEVICE, else a GPU where there is one]");
}

std::string device_or_default(const std::string& given) {
  if (!given.empty()) return given;
  const char* named = std::getenv("TWINKLE_DEVICE");
  if (named != nullptr && *named != '\0') return named;
  if (!std::filesystem::exists("/dev/nvidiactl")) return "cpu";  // and no CUDA library is loaded
  try {
    engine::device_named("cuda");
    return "cuda";
  } catch (const Error& e) {
    std::fprintf(stderr, "twinkle: %s; using the CPU\n", e.what());
    return "cpu";
  }
}

}  // namespace twinkle::cli
