// The responses that are being written. Slow readers keep their bytes in memory: where these become
// too many, the connection that has been at it longest is closed. Bytes that several are sent are
// there once. On the service's thread.
#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace twinkle::server {

class Sending {
 public:
  explicit Sending(int64_t max_bytes) : max_bytes_(max_bytes) {}

  // From here until the end of this, `text` is being sent; `close` ends its connection, at most
  // once and not within the constructor of this one. Short texts do not count.
  class One;

  int64_t num_bytes() const { return num_bytes_; }

 private:
  struct Entry {
    const std::string* text;
    std::function<void()> close;  // empty: it was closed
  };

  void release(Entry& entry);

  const int64_t max_bytes_;
  int64_t num_bytes_ = 0;
  std::list<Entry> all_;                         // the oldest first
  std::map<const std::string*, int64_t> times_;  // how many are sent the text
};

class Sending::One {
 public:
  One(std::shared_ptr<Sending> sending, const std::string& text, std::function<void()> close);
  ~One();
  One(const One&) = delete;
  One& operator=(const One&) = delete;

 private:
  const std::shared_ptr<Sending> sending_;  // a coroutine of a server that has ended may end later
  std::list<Entry>::iterator at_;           // the end: it does not count
};

}  // namespace twinkle::server
