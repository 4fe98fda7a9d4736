#include "twinkle/text/rows.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "twinkle/base/error.h"

namespace twinkle::text {
namespace {

// Rows are taken in rising order, so every row below a failing one has been taken, too: the lowest
// failure is the same whatever the number of threads.
struct Failure {
  std::mutex mutex;
  size_t row = SIZE_MAX;
  std::exception_ptr cause;

  void keep(size_t failed, std::exception_ptr why) {
    const std::lock_guard lock(mutex);
    if (failed >= row) return;
    row = failed;
    cause = std::move(why);
  }
};

[[noreturn]] void rethrow(const Failure& failure) {
  constexpr std::string_view kFolder = "text: ";
  try {
    std::rethrow_exception(failure.cause);
  } catch (const Error& error) {
    std::string_view text = error.what();
    if (text.starts_with(kFolder)) text.remove_prefix(kFolder.size());
    fail(error.code, "text: row ", failure.row, ": ", text);
  }
}

}  // namespace

void for_each_row(size_t num_rows, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  Failure failure;
  const auto take_rows = [&] {
    while (!failed) {
      const size_t row = next++;
      if (row >= num_rows) return;
      try {
        work(row);
      } catch (...) {
        failure.keep(row, std::current_exception());
        failed = true;
      }
    }
  };
  const size_t num_threads =
      std::min<size_t>(num_rows, std::max(1u, std::thread::hardware_concurrency()));
  {
    std::vector<std::jthread> others;
    for (size_t i = 1; i < num_threads; ++i) others.emplace_back(take_rows);
    take_rows();
  }
  if (failure.cause) rethrow(failure);
}

}  // namespace twinkle::text
