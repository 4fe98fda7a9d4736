#include "twinkle/engine/background/background.h"

#include <utility>

namespace twinkle::engine {

void Background::add(int64_t id, Rest rest) {
  if (!thread_.joinable()) thread_ = std::thread([this] { loop(); });
  Jobs one;
  one.push_back({.id = id, .rest = std::move(rest)});
  {
    const Lock lock(mutex_);
    waiting_.splice(waiting_.end(), one);
  }
  ready_.notify_one();
}

Background::Jobs Background::take_ended() {
  const Lock lock(mutex_);
  return std::exchange(ended_, {});
}

void Background::stop() {
  Jobs never;
  {
    const Lock lock(mutex_);
    stopped_ = true;
    never.swap(waiting_);
  }
  ready_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Background::loop() {
  while (true) {
    Jobs one;
    {
      Lock lock(mutex_);
      while (waiting_.empty() && !stopped_) lock.wait(ready_);
      if (waiting_.empty()) return;
      one.splice(one.end(), waiting_, waiting_.begin());
    }
    Job& job = one.front();
    try {
      job.result = job.rest({});
    } catch (...) {
      job.error = std::current_exception();
    }
    {
      const Lock lock(mutex_);
      ended_.splice(ended_.end(), one);
    }
    on_end_();
  }
}

}  // namespace twinkle::engine
