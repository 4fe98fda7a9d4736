#include "twinkle/kernels/simd/team.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace twinkle::kernels {
namespace {

using Run = std::function<void(int64_t, int64_t)>;

constexpr int64_t kPiecesPerThread = 8;  // so that a thread that is late leaves its share to others
constexpr int64_t kFetched = int64_t{384}
                             << 10;  // bytes that stay in a core's cache together with its data
constexpr int kPatience = 20000;     // looks, about half a millisecond, before giving way

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// A loop's pieces, those of each thread first its own.
struct alignas(64) Share {
  std::atomic<int64_t> next{0};
  int64_t end = 0;
};

class Team {
 public:
  explicit Team(int num_threads) : shares_(static_cast<size_t>(num_threads)) {}

  // The calling thread's side.
  void run(int64_t begin, int64_t end, int64_t grain, const Run& work) {
    const auto threads = std::ssize(shares_);
    const int64_t most = threads * kPiecesPerThread;
    step_ = std::max(grain, (end - begin + most - 1) / most);
    begin_ = begin, end_ = end, work_ = &work;
    const int64_t pieces = (end - begin + step_ - 1) / step_;
    for (int64_t t = 0; t < threads; ++t) {
      Share& share = shares_[static_cast<size_t>(t)];
      share.next.store(pieces * t / threads, std::memory_order_relaxed);
      share.end = pieces * (t + 1) / threads;
    }
    round_.fetch_add(1);  // odd: a loop is open
    take_pieces(0);
    round_.fetch_add(1);
    // Threads that entered before close may still run a piece.
    for (int looks = 0; active_.load() != 0; ++looks) wait(looks);
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

  void stop() { round_.store(kStopped); }

  void will_read(const char* first, int64_t bytes) {
    bytes_.store(bytes, std::memory_order_relaxed);
    first_.store(first, std::memory_order_release);
  }

  // The side of thread `self`, until stop().
  void help(size_t self) {
    uint64_t seen = 0;
    Ahead ahead;
    for (int looks = 0;; ++looks) {
      const uint64_t now = round_.load();
      if (now == kStopped) return;
      if (now == seen || now % 2 == 0) {
        if (!fetch(ahead, self)) wait(looks);
        continue;
      }
      active_.fetch_add(1);
      seen = round_.load();
      if (seen != kStopped && seen % 2 == 1) take_pieces(self);
      active_.fetch_sub(1);
      looks = 0;
    }
  }

 private:
  static constexpr uint64_t kStopped = ~uint64_t{0} - 1;

  // The rest of the memory that a helper was asked to prefetch.
  struct Ahead {
    const char* told = nullptr;
    const char* line = nullptr;
    const char* end = nullptr;
  };

  // A few lines; false when there is nothing left.
  bool fetch(Ahead& ahead, size_t self) const {
    const char* first = first_.load(std::memory_order_acquire);
    if (first != ahead.told) {
      const int64_t bytes = bytes_.load(std::memory_order_relaxed);
      const auto threads = std::ssize(shares_), part = static_cast<std::ptrdiff_t>(self);
      ahead.told = first;
      ahead.line = first + bytes * part / threads;
      ahead.end = std::min(first + bytes * (part + 1) / threads, ahead.line + kFetched);
    }
    if (ahead.line >= ahead.end) return false;
    for (int i = 0; i < 4; ++i, ahead.line += 64) __builtin_prefetch(ahead.line, 0, 2);
    return true;
  }

  static void wait(int looks) {
    pause();
    if (looks > kPatience) std::this_thread::yield();
  }

  void take_pieces(size_t self) {
    for (size_t i = 0; i < shares_.size(); ++i) {
      Share& share = shares_[(self + i) % shares_.size()];
      for (int64_t n = share.next.fetch_add(1); n < share.end; n = share.next.fetch_add(1)) {
        const int64_t first = begin_ + n * step_;
        try {
          (*work_)(first, std::min(end_, first + step_));
        } catch (...) {  // goes to the thread that opened the loop
          const std::lock_guard lock(error_mutex_);
          error_ = std::current_exception();
        }
      }
    }
  }

  std::vector<Share> shares_;
  int64_t begin_ = 0, end_ = 0, step_ = 1;
  const Run* work_ = nullptr;
  alignas(64) std::atomic<uint64_t> round_{
      0};  // twice the number of loops, plus one while one is open
  std::atomic<const char*> first_{nullptr};  // the file that will_read() named
  std::atomic<int64_t> bytes_{0};
  alignas(64) std::atomic<int> active_{0};  // helpers that may be at a piece
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

thread_local Team* current = nullptr;  // the team whose body this thread runs

}  // namespace

void with_team(const std::function<void()>& body) {
  const int threads = at::get_num_threads();
  if (current || threads == 1 || at::in_parallel_region()) return body();
  Team team(threads);
  at::parallel_for(0, threads, 1, [&](int64_t first, int64_t) {
    if (first != 0) return team.help(static_cast<size_t>(first));
    struct Scope {
      explicit Scope(Team& team) { current = &team; }
      ~Scope() {
        current->stop();
        current = nullptr;
      }
    } const scope(team);
    body();
  });
}

bool in_team() { return current != nullptr; }

void will_read(const void* first, int64_t bytes) {
  if (current) current->will_read(static_cast<const char*>(first), bytes);
}

void parallel_for(int64_t begin, int64_t end, int64_t grain, const Run& run) {
  if (begin >= end) return;
  if (!current) return at::parallel_for(begin, end, grain, run);
  if (end - begin <= grain) return run(begin, end);
  // A loop within a piece is the library's, which runs it where it is.
  struct Scope {
    Team* team = std::exchange(current, nullptr);
    ~Scope() { current = team; }
  } const scope;
  scope.team->run(begin, end, grain, run);
}

}  // namespace twinkle::kernels
