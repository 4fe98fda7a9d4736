// fuzz: names the readers. fuzz READER SECONDS [SEED]: damaged cases, as many as fit into the time;
// the first finding ends it with status 1 and is written to fuzz-READER-SEED.case: a crash, an
// exception other than an Error, more than 256 MiB, ten seconds of a processor or two minutes on a
// busy machine without an end. fuzz READER FILE: that case alone, in this process. The cases are
// read by a child, so that whatever ends it is seen.
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <new>
#include <thread>

#include "tests/fuzz/mutate.h"
#include "twinkle/base/error.h"
#include "twinkle/base/file.h"

namespace twinkle::fuzz {

#define FUZZ(name) Reader name();
#include "tests/fuzz/readers.def"
#undef FUZZ

namespace {

using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kMaxGrowth = int64_t{1} << 30;  // freed memory waits in its quarantine
#else
constexpr int64_t kMaxGrowth = int64_t{256} << 20;
#endif
constexpr double kMaxCpuSeconds = 10, kMaxSeconds = 120;  // for one case
constexpr size_t kMaxPool = 500;                // cases that were accepted, to damage further
constexpr size_t kMaxPooled = size_t{1} << 14;  // bytes of one: large ones are slow

// The child's message.
struct Shared {
  std::atomic<uint64_t> cases, accepted;
  std::atomic<size_t> size;
  int64_t peak;  // bytes of memory before, libraries among them
  char bytes[kMaxCase];
};

std::vector<Reader (*)()> makers() {
  return {
#define FUZZ(name) name,
#include "tests/fuzz/readers.def"
#undef FUZZ
  };
}

int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

// True if the reader takes the case.
bool accepts(const Reader& reader, const std::string& bytes) {
  try {
    reader.read(bytes);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void publish(Shared& shared, const std::string& bytes) {
  bytes.copy(shared.bytes, bytes.size());
  shared.size = bytes.size();
  ++shared.cases;
}

// The child: ends with status 0, or dies.
int run(const Reader& reader, double seconds, uint64_t seed, Shared& shared) {
  const int64_t allowed = shared.peak + kMaxGrowth;
  std::mt19937_64 random(seed);
  std::vector<std::string> pool = reader.corpus;
  // Large ones are slow: one in sixteen of them.
  const auto drawn = [&]() -> const std::string& {
    while (true) {
      const std::string& one = pool[random() % pool.size()];
      if (one.size() <= kMaxPooled || random() % 16 == 0) return one;
    }
  };
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (size_t i = 0; i < reader.corpus.size() || Clock::now() < end; ++i) {
    std::string bytes =
        i < reader.corpus.size() ? reader.corpus[i] : mutated(drawn(), drawn(), reader, random);
    publish(shared, bytes);
    const bool accepted = accepts(reader, bytes);
    if (peak_bytes() > allowed) {
      std::fprintf(stderr, "fuzz: %s: a case took more than %lld MiB\n", reader.name.c_str(),
                   static_cast<long long>(kMaxGrowth >> 20));
      return 1;
    }
    if (!accepted) continue;
    ++shared.accepted;
    if (bytes.size() > kMaxPooled) continue;
    if (pool.size() < kMaxPool) {
      pool.push_back(std::move(bytes));
    } else {  // those that it began with stay
      const size_t kept = reader.corpus.size();
      pool[kept + random() % (kMaxPool - kept)] = std::move(bytes);
    }
  }
  return 0;
}

double cpu_seconds(pid_t process) {
  clockid_t clock;
  timespec used{};
  if (::clock_getcpuclockid(process, &clock) == 0) ::clock_gettime(clock, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// Waits for the child; whether it ended well.
bool watch(pid_t child, const Reader& reader, const Shared& shared) {
  uint64_t seen = 0;
  auto since = Clock::now();
  double cpu_before = 0;
  for (int status = 0;; std::this_thread::sleep_for(std::chrono::milliseconds(20))) {
    if (::waitpid(child, &status, WNOHANG) == child)
      return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (shared.cases != seen)
      seen = shared.cases, since = Clock::now(), cpu_before = cpu_seconds(child);
    const double wall = std::chrono::duration<double>(Clock::now() - since).count();
    const double cpu = cpu_seconds(child) - cpu_before;
    if (cpu < kMaxCpuSeconds && wall < kMaxSeconds) continue;
    std::fprintf(stderr, "fuzz: %s: a case did not end in %.0f s, %.0f s of a processor\n",
                 reader.name.c_str(), wall, cpu);
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return false;
  }
}

int fuzz(const Reader& reader, double seconds, uint64_t seed) {
  void* memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(memory != MAP_FAILED, Code::kInternal, "fuzz: no memory");
  auto& shared = *new (memory) Shared{};
  shared.peak = peak_bytes();
  scratch_folder();  // the child's, too
  const auto begin = Clock::now();
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      ::_exit(run(reader, seconds, seed, shared));
    } catch (const std::exception& e) {
      std::fprintf(stderr, "fuzz: %s: an exception that is no Error: %s\n", reader.name.c_str(),
                   e.what());
      ::_exit(1);
    }
  }
  const bool good = watch(child, reader, shared);
  fs::remove_all(scratch_folder());
  const double took = std::chrono::duration<double>(Clock::now() - begin).count();
  std::printf("fuzz: %s: seed %llu, %llu cases (%.0f a second), %llu accepted\n",
              reader.name.c_str(), static_cast<unsigned long long>(seed),
              static_cast<unsigned long long>(shared.cases.load()),
              static_cast<double>(shared.cases) / took,
              static_cast<unsigned long long>(shared.accepted.load()));
  if (good) return 0;
  const std::string name = "fuzz-" + reader.name + "-" + std::to_string(seed) + ".case";
  std::ofstream(name, std::ios::binary)
      .write(shared.bytes, static_cast<std::streamsize>(shared.size.load()));
  std::printf("fuzz: %s: a finding: the case is in %s\n", reader.name.c_str(),
              fs::absolute(name).c_str());
  return 1;
}

template <class T>
bool parse(std::string_view text, T& out) {
  const auto end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, out);
  return read.ec == std::errc{} && read.ptr == end;
}

int main(std::span<const std::string> arguments) {
  double seconds = 0;
  uint64_t seed = 1;
  for (const auto make : makers()) {
    const Reader reader = make();
    if (arguments.empty()) std::printf("%s\n", reader.name.c_str());
    if (arguments.size() < 2 || arguments[0] != reader.name) continue;
    if (!parse(arguments[1], seconds)) {
      std::printf("%s\n", accepts(reader, read_file(arguments[1])) ? "accepted" : "refused");
      return 0;
    }
    if (arguments.size() > 2 && !parse(arguments[2], seed)) break;
    return fuzz(reader, seconds, seed);
  }
  if (arguments.empty()) return 0;
  std::fprintf(stderr,
               "fuzz: fuzz READER SECONDS [SEED], or READER FILE; fuzz names the readers\n");
  return 2;
}

}  // namespace

}  // namespace twinkle::fuzz

int main(int count, char** values) {
  return twinkle::fuzz::main(std::vector<std::string>(values + 1, values + count));
}
