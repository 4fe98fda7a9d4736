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

void Reader::read(uint64_t sequence, Then then) {
  {
    const Lock lock(mutex_);
    queue_.emplace_back(sequence, std::move(then));
  }
  ready_.notify_one();
}

void Reader::run() {
  for (;;) {
    std::pair<uint64_t, Then> next;
    {
      Lock lock(mutex_);
      while (queue_.empty() && !stopping_) lock.wait(ready_);
      if (stopping_) return;
      next = std::move(queue_.front());
      queue_.pop_front();
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
