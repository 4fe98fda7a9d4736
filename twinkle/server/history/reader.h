// Reads commands and answers back from the journal on a thread of its own, one after another,
// commands first: the service's thread never waits for the disk, and no work for polls.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <thread>
#include <utility>
#include <variant>

#include "twinkle/base/guarded.h"
#include "twinkle/server/history/records.h"
#include "twinkle/server/loop.h"

namespace twinkle::server {

// What is left on the disk until it is needed.
using ReadBack = std::variant<Command, Ended>;

enum class ReadFor { kWork, kPoll };

class Reader {
 public:
  // On the reader's thread. Errors as of store::Journal::read, and kInvalid: it is neither.
  using Read = std::function<ReadBack(uint64_t sequence)>;
  // Of the record and null, or of an empty one and the error. On the service's thread.
  using Then = std::function<void(ReadBack, std::exception_ptr)>;

  Reader(Loop& loop, Read read);
  ~Reader();  // what has not been told is not told
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void read(uint64_t sequence, ReadFor what, Then then);

 private:
  using Asked = std::pair<uint64_t, Then>;

  void run();

  Loop& loop_;
  const Read read_;
  Mutex mutex_;
  std::condition_variable ready_;
  std::deque<Asked> work_ GUARDED_BY(mutex_), polls_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace twinkle::server
