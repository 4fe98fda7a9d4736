// engine_soak SECONDS: one engine under drawn lives of many tenants, round after round, and after
// some rounds of one that trains every weight; a second engine runs each life alone. No name comes
// twice. After a round the engine holds nothing, and says so. Prints the first tenant that ends
// unlike its reference, or, as JSON, the resident memory after the first fifth of the time; every
// minute, on stderr, how far it is. tests/test_soak.py judges it.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "twinkle/engine/exactness/schedules_for_test.h"

namespace twinkle::engine {
namespace {

constexpr size_t kTenants = 12;
constexpr uint64_t kOperations = 160,
                   kOwnersOperations = 24;           // in a round; by one who owns it all
constexpr uint64_t kFullEvery = 4, kResetEvery = 3;  // rounds

double resident_mib() {
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) / (1 << 20);
}

struct Counts {
  uint64_t rounds = 0, operations = 0, cancelled = 0, heard = 0, pinned = 0, full = 0;
};

class Soak {
 public:
  Soak()
      : engine_({.model = {.path = model_.path(), .activation_bytes = 4'000},
                 .scheduling = {.token_budget = 60},
                 .sampler = {.kv_tokens = 1024},
                 .parking = {.resident_bytes = 40'000, .directory = parked_.path().string()}}),
        reference_({.model = {.path = model_.path()}, .sampler = {.kv_tokens = 1024}}),
        base_(base_weights()) {}

  // Every tenant ends as it does alone, and nothing is left of it. False: it says what is wrong.
  bool round() {
    const uint64_t seed = ++counts_.rounds;
    prefix_ = "round" + std::to_string(seed) + "-";
    if (seed % kResetEvery == 0) engine_.reset_prefix_cache();
    bool good = same(kTenants, seed, [&](const std::string& folder) {
      return some_schedule(seed, folder, kTenants, kOperations, prefix_);
    });
    if (good && seed % kFullEvery == 0) good = owner(seed);
    return good && empty();
  }

  const Counts& counts() const { return counts_; }
  Engine& engine() { return engine_; }

 private:
  using Lives = std::function<std::vector<Owned>(const std::string& folder)>;

  static bool wrong(const std::string& what) {
    std::printf("%s\n", what.c_str());
    return false;
  }
  std::string name(size_t t) const { return prefix_ + "t" + std::to_string(t); }

  bool same(size_t tenants, uint64_t seed, const Lives& lives) {
    const ScratchDir scratch, apart;
    const std::string folder = scratch.path().string(), other = apart.path().string();
    const std::vector<Owned> together = with_deletes(lives(folder), tenants);
    const std::vector<Owned> alone = with_deletes(lives(other), tenants);
    const Outcomes got = at_once(engine_, together, folder, seed);
    counts_.operations += together.size();
    counts_.cancelled += got.cancelled.size();
    counts_.heard += got.num_heard;
    counts_.pinned += got.num_pinned;
    for (size_t t = 0; t < tenants; ++t) {
      if (one_by_one(reference_, t, alone, other, got.cancelled) != got.of[t])
        return wrong(name(t) + " differs");
      // A Delete that was called back is made good.
      for (Engine* each : {&engine_, &reference_}) each->submit(Delete{name(t)}).wait();
    }
    return true;
  }
  std::vector<Owned> with_deletes(std::vector<Owned> lives, size_t tenants) const {
    for (size_t t = 0; t < tenants; ++t) lives.push_back({t, Delete{name(t)}});
    return lives;
  }

  // One who trains every weight, alone on the engine; then the base is as it was.
  bool owner(uint64_t seed) {
    ++counts_.full;
    prefix_ += "owner-";
    for (Engine* each : {&engine_, &reference_})
      each->run<Done>(Create{.tenant = name(0), .seed = seed});
    Future refused = engine_.submit(Create{.tenant = name(1), .frozen = true});
    if (outcome_of(refused).find("trains all weights") == std::string::npos)
      return wrong(name(1) + " is let in beside " + name(0));
    const bool good = same(1, seed, [&](const std::string& folder) {
      std::vector<Owned> out = some_schedule(seed, folder, 1, kOwnersOperations, prefix_);
      out.erase(out.begin());  // it is there already
      return out;
    });
    return good && (base_weights() == base_ || wrong("the base is not as it was"));
  }
  uint64_t base_weights() {
    engine_.run<Done>(Create{.tenant = "base", .frozen = true});
    const uint64_t out = engine_.run<InspectResult>(Inspect{"base"}).weights;
    engine_.run<Done>(Delete{"base"});
    return out;
  }

  bool empty() const {
    const Stats stats = engine_.stats();
    const SamplingStats sampling = engine_.sampling();
    const ParkingStats parking = engine_.parking();
    if (stats.num_queued != 0 || !stats.tenants.empty())
      return wrong("operations or tenants are left");
    if (sampling.num_samples + sampling.num_sequences != 0 ||
        sampling.num_free_pages != sampling.num_pages)
      return wrong("the sampler holds something");
    if (parking.num_parked != 0 || parking.resident_bytes != 0 || parking.num_failures != 0)
      return wrong("state of tenants is left");
    const std::filesystem::recursive_directory_iterator files(parked_.path());
    if (std::any_of(begin(files), end(files), [](const auto& f) { return f.is_regular_file(); }))
      return wrong("files of parked tenants are left");
    return true;
  }

  const model::TinyModel model_{smallest_config()};
  const ScratchDir parked_;
  Engine engine_, reference_;
  uint64_t base_;
  std::string prefix_;
  Counts counts_;
};

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

void print(Soak& soak, const std::vector<Reading>& samples) {
  const size_t n = samples.size();
  const Counts& c = soak.counts();
  Engine& engine = soak.engine();
  JsonObject out;
  out["rounds"] = c.rounds;
  out["tenants"] = c.rounds * kTenants + c.full;
  out["full"] = c.full;
  out["operations"] = c.operations;
  out["cancelled"] = c.cancelled;
  out["batches"] = engine.stats().num_batches;
  out["recomputed_layers"] = engine.num_recomputed_layers();
  out["heard_tokens"] = c.heard;
  out["pinned_samples"] = c.pinned;
  out["shared_tokens"] = engine.sampling().num_shared_tokens;
  out["returns"] = engine.parking().num_returns;
  out["first_mib"] = mean(samples, 0, n / 4);
  out["last_mib"] = mean(samples, n - n / 4, n);
  out["slope_mib_an_hour"] = slope(samples);
  std::printf("%s\n", boost::json::serialize(out).c_str());
}

int run(double seconds) {
  Soak soak;
  const auto start = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<Reading> samples;
  double told = 0;
  while (passed() < seconds) {
    if (!soak.round()) return 1;
    const double now = passed();
    if (now > seconds / 5) samples.push_back({now, resident_mib()});
    if (now - told < 60) continue;
    told = now;
    std::fprintf(stderr, "engine_soak: %.0f of %.0f s, %llu rounds, %.2f MiB\n", now, seconds,
                 static_cast<unsigned long long>(soak.counts().rounds), resident_mib());
  }
  if (samples.size() < 8) {
    std::printf("too short: %zu rounds after the warm-up\n", samples.size());
    return 1;
  }
  print(soak, samples);
  return 0;
}

}  // namespace
}  // namespace twinkle::engine

int main(int argc, char** argv) {
  return twinkle::engine::run(argc > 1 ? std::atof(argv[1]) : 3600);
}
