// Splits [0, n) over the machine's cores. Exceptions travel to the caller; the one of the lowest
// index wins, so that a file with two bad rows always reports the first. The caller may end the
// work early (Ctrl-C): who waits makes an Interrupt, then computes, itself or with
// parallel_ranges(), which passes it on to its threads; who computes asks now and then.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <thread>
#include <utility>
#include <vector>

namespace twinkle {

// Thrown to end an interrupted computation. Not an Error: no input is at fault.
struct Interrupted {
  // For the other ranks of a group, which ends with it.
  static constexpr const char* kText = "its script was interrupted; start all ranks again";
};

class Interrupt {
 public:
  static constexpr std::chrono::milliseconds kSlice{50};

  // `wanted` is called by this thread alone, once in a slice, until it says yes.
  explicit Interrupt(std::function<bool()> wanted)
      : wanted_(std::move(wanted)), before_(std::exchange(current(), this)) {}
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;
  ~Interrupt() { current() = before_; }

  // That of the work this thread does; null: none.
  static Interrupt*& current() {
    static thread_local Interrupt* interrupt = nullptr;
    return interrupt;
  }

  // True if the work of this thread should end.
  static bool asked() { return current() && current()->is_asked(); }

  // Throws Interrupted where asked().
  static void check() {
    if (asked()) throw Interrupted();
  }

 private:
  bool is_asked() {
    if (std::this_thread::get_id() != owner_) return asked_;
    const auto now = std::chrono::steady_clock::now();
    if (asked_ || now < next_) return asked_;
    next_ = now + kSlice;
    asked_ = wanted_();
    return asked_;
  }

  const std::function<bool()> wanted_;
  Interrupt* const before_;
  const std::thread::id owner_ = std::this_thread::get_id();
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kSlice;
  std::atomic<bool> asked_ = false;
};

// A worker's: the interrupt of the thread that waits for it, for its scope.
class Interruptible {
 public:
  explicit Interruptible(Interrupt* of) : before_(std::exchange(Interrupt::current(), of)) {}
  Interruptible(const Interruptible&) = delete;
  Interruptible& operator=(const Interruptible&) = delete;
  ~Interruptible() { Interrupt::current() = before_; }

 private:
  Interrupt* const before_;
};

// Calls work(begin, end) on disjoint ranges that cover [0, n), each of at least `grain` indices but
// the last. A range that throws must do so at its lowest bad index.
template <class Work>
void parallel_ranges(int64_t n, int64_t grain, const Work& work) {
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t parts = std::clamp<int64_t>(n / std::max<int64_t>(1, grain), 1, cores);
  if (parts == 1) return work(int64_t{0}, n);
  Interrupt* const interrupt = Interrupt::current();
  std::vector<std::future<void>> running;
  for (int64_t part = 0; part < parts; ++part) {
    running.push_back(std::async(std::launch::async, [&work, n, parts, part, interrupt] {
      const Interruptible scope(interrupt);
      work(n * part / parts, n * (part + 1) / parts);
    }));
  }
  for (auto& range : running)  // all of them, before one rethrows and the caller's frame goes
    while (range.wait_for(Interrupt::kSlice) != std::future_status::ready) Interrupt::asked();
  Interrupt::check();
  for (auto& range : running) range.get();
}

}  // namespace twinkle
