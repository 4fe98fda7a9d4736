// For tests: a journal that is open, and what it calls back.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "twinkle/base/error_for_test.h"
#include "twinkle/store/journal.h"

namespace twinkle::store {

struct Kept {
  uint64_t sequence;
  int kind, version;
  std::string payload;
  bool operator==(const Kept&) const = default;
};

struct Opened {
  explicit Opened(const std::filesystem::path& folder, JournalOptions options = {}) {
    journal = std::make_unique<Journal>(folder, options);
    journal->open([this](const Record& r) {
      kept.push_back({r.sequence, r.kind, r.version, std::string(r.payload)});
    });
  }
  std::vector<Kept> kept;
  std::unique_ptr<Journal> journal;
};

// The callbacks, which a test waits for.
class Calls {
 public:
  Journal::OnWritten one() {
    return [this](uint64_t sequence, std::exception_ptr error) {
      const std::lock_guard lock(mutex_);
      texts_.push_back(error ? error_of([&] { std::rethrow_exception(error); })
                             : std::to_string(sequence));
      ready_.notify_all();
    };
  }
  std::vector<std::string> wait(size_t count) {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [&] { return texts_.size() >= count; });
    return texts_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<std::string> texts_;
};

inline std::string text_of(uint64_t i) { return "payload " + std::to_string(i); }

// Appends `count` records, one after another, and closes.
inline void write_records(const std::filesystem::path& folder, int count,
                          JournalOptions options = {}) {
  Calls calls;
  Opened opened(folder, options);
  for (int i = 0; i < count; ++i) opened.journal->append(1, 2, text_of(i + 1), calls.one());
  for (const std::string& text : calls.wait(count)) EXPECT_EQ(text.find("store"), text.npos);
}

inline void wait_until_healthy(const Journal& journal) {
  while (!journal.healthy()) ::usleep(1000);
}

}  // namespace twinkle::store
