// A listener of a Sample whose tokens another thread reads at any time: sampling never waits for
// it. Unread tokens are kept, at most as many as the Sample asks for; its reserved bytes count
// them.
#pragma once
#include <chrono>
#include <condition_variable>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "twinkle/base/guarded.h"
#include "twinkle/engine/schedule/hooks.h"

namespace twinkle::engine {

class TokenQueue {
 public:
  // For SampleHooks::on_tokens. The queue ends when the Sample destroys it, at any end.
  static std::function<void(std::span<const TokenEvent>)> listener(
      std::shared_ptr<TokenQueue> queue) {
    return [held = std::make_shared<Listener>(std::move(queue))](
               std::span<const TokenEvent> events) { held->queue->put(events); };
  }

  // Waits for tokens, or for the end, or `seconds` at most, and takes all that have come. True:
  // there is no more to come.
  bool take(double seconds, std::vector<TokenEvent>& out) {
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                         std::chrono::duration<double>(seconds));
    Lock lock(mutex_);
    while (!ended_ && events_.empty() && lock.wait_until(ready_, end)) {
    }
    out.swap(events_);
    return ended_;
  }

  // Ends it for its reader: frees the unread tokens, and those that come later. Returns how many
  // have come.
  int64_t close() {
    std::vector<TokenEvent> unread;  // freed without the lock
    const Lock lock(mutex_);
    unread.swap(events_);
    ended_ = closed_ = true;
    ready_.notify_one();
    return num_tokens_;
  }

 private:
  struct Listener {
    explicit Listener(std::shared_ptr<TokenQueue> to) : queue(std::move(to)) {}
    ~Listener() { queue->end(); }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    std::shared_ptr<TokenQueue> queue;
  };
  void put(std::span<const TokenEvent> events) {
    {
      const Lock lock(mutex_);
      if (!closed_) events_.insert(events_.end(), events.begin(), events.end());
      num_tokens_ += std::ssize(events);
    }
    ready_.notify_one();
  }
  void end() {
    {
      const Lock lock(mutex_);
      ended_ = true;
    }
    ready_.notify_one();
  }

  Mutex mutex_;
  std::condition_variable ready_;
  std::vector<TokenEvent> events_ GUARDED_BY(mutex_);
  int64_t num_tokens_ GUARDED_BY(mutex_) = 0;  // that have come
  bool ended_ GUARDED_BY(mutex_) = false;      // no more come
  bool closed_ GUARDED_BY(mutex_) = false;     // nobody reads
};

}  // namespace twinkle::engine
