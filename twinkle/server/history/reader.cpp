#include "twinkle/server/history/reader.h"

#include <memory>

namespace twinkle::server {

Reader::Reader(Loop& loop, Read read)
    : loop_(loop), read_(std::move(read)), thread_([this] { run(); }) {}

Reader::~Reader() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  thread_.join();
}

void Reader::read(uint64_t sequence, ReadFor what, Then then) {
  {
    const Lock lock(mutex_);
    (what == ReadFor::kWork ? work_ : polls_).emplace_back(sequence, std::move(then));
  }
  ready_.notify_one();
}

void Reader::run() {
  for (;;) {
    Asked next;
    {
      Lock lock(mutex_);
      while (work_.empty() && polls_.empty() && !stopping_) lock.wait(ready_);
      if (stopping_) return;
      std::deque<Asked>& from = work_.empty() ? polls_ : work_;
      next = std::move(from.front());
      from.pop_front();
    }
    const auto kept = std::make_shared<ReadBack>();
    std::exception_ptr error;
    try {
      *kept = read_(next.first);
    } catch (...) {
      error = std::current_exception();
    }
    loop_.post([then = std::move(next.second), kept, error] { then(std::move(*kept), error); });
  }
}

}  // namespace twinkle::server
