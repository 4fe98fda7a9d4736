// Memory that loading threads have freed goes back to the system.
#include <gtest/gtest.h>
#include <malloc.h>

#include "twinkle/engine/memory/model_options_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace {

int num_trims = 0;

}  // namespace

// Instead of the C library's, in this program.
extern "C" int malloc_trim(size_t) noexcept {
  ++num_trims;
  return 1;
}

namespace twinkle::engine {
namespace {

TEST(TrimmedHeaps, EverySixtyFourMebibytesThatLoadsHaveRead) {
  const model::TinyModel model;
  const ScratchDir scratch(memory_folder());
  const std::string folder = scratch / "checkpoint";
  DecoderExecutor executor(small_model(model.path()));
  const auto run = [&](const Operation& operation) {
    if (const FirstPart first = executor.first_part(operation); first.rest) {
      first.rest({});
      return;
    }
    const auto prepared = executor.prepare(operation, {});
    executor.run(operation, prepared.get());
  };
  run(Create{.tenant = "me", .lora_json = R"({"r": 64, "target_modules": "all-linear"})"});
  run(Save{"me", folder, true, ""});
  num_trims = 0;
  const int64_t bytes = std::filesystem::file_size(folder + "/adapter_model.safetensors");
  const int64_t loads = (int64_t{64} << 20) / bytes;
  for (int64_t i = 0; i + 1 < loads; ++i) run(Load{"me", folder, false});
  EXPECT_EQ(num_trims, 0);
  for (int64_t i = 0; i < loads + 2; ++i) run(Load{"me", folder, false});
  EXPECT_EQ(num_trims, 1);
}

}  // namespace
}  // namespace twinkle::engine
