#include "twinkle/engine/execute/memory_checks.h"

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <cmath>

#include "twinkle/base/error.h"
#include "twinkle/base/memory/memory_limit.h"
#include "twinkle/engine/device.h"

namespace twinkle::engine {
namespace {

constexpr double kMiB = 1 << 20;

double memory_of(at::Device device) {
  if (!device.is_cpu()) {
    auto* allocator = c10::getDeviceAllocator(device.type());
    return static_cast<double>(allocator->getMemoryInfo(device.index()).second);
  }
  return static_cast<double>(memory_limit());
}

}  // namespace

int64_t memory_of_tenants(const EngineOptions& o) {
  const bool is_share = o.parking.resident_bytes == ParkingOptions::kHalf;
  if (!is_share || o.parking.directory.empty()) return 0;
  const at::Device device = device_named(o.model.device);
  at::empty({1}, device);  // its allocator answers from the first tensor on
  return static_cast<int64_t>(memory_of(device));
}

void require_cache_fits(int64_t tokens, double bytes, at::Device device) {
  if (!device.is_cpu()) return;
  const double memory = memory_of(device);
  require(bytes <= memory, Code::kInvalid, "engine: kv_tokens is ", tokens,
          ", whose keys and values take ", std::ceil(bytes / kMiB), " MiB, this process may use ",
          std::floor(memory / kMiB), " MiB; lower it");
}

void require_states_fit(int64_t sequences, double bytes, double cache, at::Device device) {
  if (!device.is_cpu() || bytes == 0) return;
  const double memory = memory_of(device);
  require(bytes + cache <= memory, Code::kInvalid, "engine: max_sequences is ", sequences,
          ", whose states take ", std::ceil(bytes / kMiB), " MiB and the cache's pages ",
          std::ceil(cache / kMiB), " MiB, this process may use ", std::floor(memory / kMiB),
          " MiB; lower it");
}

void require_share(double share, double weights, double cache, at::Device device) {
  if (share == 1) return;
  const double memory = memory_of(device);
  require(weights + cache <= share * memory, Code::kInvalid, "engine: memory_share is ", share,
          " of ", std::floor(memory / kMiB), " MiB, but weights take ", std::ceil(weights / kMiB),
          " MiB and the sampler's cache ", std::ceil(cache / kMiB),
          " MiB; raise it, or lower kv_tokens");
}

}  // namespace twinkle::engine
