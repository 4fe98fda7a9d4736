// engine_soak SECONDS: one engine under drawn lives of many tenants, round after round; a second
// engine runs each life alone. Prints the first tenant that ends unlike its reference, or, as JSON,
// the resident memory after the first fifth of the time. tests/test_soak.py judges it.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "twinkle/engine/exactness/schedules_for_test.h"

namespace twinkle::engine {
namespace {

constexpr size_t kTenants = 12;
constexpr uint64_t kOperations = 160;  // of a round

double resident_mib() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

std::vector<Owned> lives(uint64_t seed, const std::string& folder) {
  std::vector<Owned> out = some_schedule(seed, folder, kTenants, kOperations);
  for (size_t t = 0; t < kTenants; ++t) out.push_back({t, Delete{"t" + std::to_string(t)}});
  return out;
}

// Every tenant ends as it does alone. A Delete that was called back is made good.
bool round(Engine& engine, Engine& reference, uint64_t seed) {
  const ScratchDir scratch, apart;
  const std::string folder = scratch.path().string(), other = apart.path().string();
  const Outcomes got = at_once(engine, lives(seed, folder), folder, seed);
  const auto alone = lives(seed, other);
  bool same = true;
  for (size_t t = 0; t < kTenants; ++t) {
    same = same && one_by_one(reference, t, alone, other, got.cancelled) == got.of[t];
    if (!same)
      std::printf("seed %llu: tenant %zu differs\n", static_cast<unsigned long long>(seed), t);
    for (Engine* each : {&engine, &reference}) each->submit(Delete{"t" + std::to_string(t)}).wait();
    if (!same) return false;
  }
  return true;
}

struct Reading {
  double seconds, mib;
};

// MiB an hour: the line of least squares.
double slope(const std::vector<Reading>& samples) {
  double x = 0, y = 0, xx = 0, xy = 0;
  const auto n = static_cast<double>(samples.size());
  for (const auto& s : samples) {
    x += s.seconds / n;
    y += s.mib / n;
  }
  for (const auto& s : samples) {
    xx += (s.seconds - x) * (s.seconds - x);
    xy += (s.seconds - x) * (s.mib - y);
  }
  return xx > 0 ? xy / xx * 3600 : 0;
}

double mean(const std::vector<Reading>& samples, size_t from, size_t to) {
  double sum = 0;
  for (size_t i = from; i < to; ++i) sum += samples[i].mib;
  return sum / static_cast<double>(to - from);
}

int run(double seconds) {
  const model::TinyModel model(smallest_config());
  const ScratchDir parked;
  Engine engine({.model = model.path(),
                 .token_budget = 60,
                 .kv_tokens = 1024,
                 .resident_bytes = 40'000,
                 .park_directory = parked.path().string()});
  Engine reference({.model = model.path(), .kv_tokens = 1024});
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<Reading> samples;
  uint64_t rounds = 0;
  while (passed() < seconds) {
    if (!round(engine, reference, ++rounds)) return 1;
    if (passed() > seconds / 5) samples.push_back({passed(), resident_mib()});
  }
  const size_t n = samples.size();
  if (n < 8) {
    std::printf("too short: %zu rounds after the warm-up\n", n);
    return 1;
  }
  const double first = mean(samples, 0, n / 4), last = mean(samples, n - n / 4, n);
  std::printf(R"({"rounds": %llu, "operations": %llu, "batches": %lld, "returns": %lld, )"
              R"("first_mib": %.2f, "last_mib": %.2f, "slope_mib_an_hour": %.3f})"
              "\n",
              static_cast<unsigned long long>(rounds),
              static_cast<unsigned long long>(rounds * (kOperations + 3 * kTenants)),
              static_cast<long long>(engine.stats().num_batches),
              static_cast<long long>(engine.parking().num_returns), first, last, slope(samples));
  return 0;
}

}  // namespace
}  // namespace twinkle::engine

int main(int argc, char** argv) {
  return twinkle::engine::run(argc > 1 ? std::atof(argv[1]) : 3600);
}
