// Splits [0, n) over the machine's cores. Exceptions travel to the caller; the one of the lowest
// index wins, so that a file with two bad rows always reports the first.
#pragma once
#include <algorithm>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

namespace twinkle {

// Calls work(begin, end) on disjoint ranges that cover [0, n), each of at least `grain` indices but
// the last. A range that throws must do so at its lowest bad index.
template <class Work>
void parallel_ranges(int64_t n, int64_t grain, const Work& work) {
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  const int64_t parts = std::clamp<int64_t>(n / std::max<int64_t>(1, grain), 1, cores);
  if (parts == 1) return work(int64_t{0}, n);
  std::vector<std::future<void>> running;
  for (int64_t part = 0; part < parts; ++part) {
    running.push_back(std::async(std::launch::async, [&work, n, parts, part] {
      work(n * part / parts, n * (part + 1) / parts);
    }));
  }
  for (auto& range : running)
    range.wait();  // all of them, before one rethrows and the caller's frame goes
  for (auto& range : running) range.get();
}

}  // namespace twinkle
