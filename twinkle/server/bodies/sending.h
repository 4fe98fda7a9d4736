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

  // From here until the end of this, a text or a stream's bytes are being sent; `close` ends its
  // connection, at most once and not within the constructor of this one. Up to 64 KiB do not count.
  class One;

  void set_max_bytes(int64_t max_bytes) { max_bytes_ = max_bytes; }
  int64_t num_bytes() const { return num_bytes_; }

 private:
  struct Entry {
    const std::string* text;      // null: a stream's ...
    int64_t num_bytes;            // ... and so many of them
    std::function<void()> close;  // empty: it was closed
  };
  using At = std::list<Entry>::iterator;

  // Closes the oldest before `end` until there are no more than may be.
  void make_room(At end);
  void release(Entry& entry);

  int64_t max_bytes_;
  int64_t num_bytes_ = 0;
  std::list<Entry> all_;                         // the oldest first
  std::map<const std::string*, int64_t> times_;  // how many are sent the text
};

class Sending::One {
 public:
  One(std::shared_ptr<Sending> sending, const std::string& text, std::function<void()> close);
  // A stream, of which nothing is there yet.
  One(std::shared_ptr<Sending> sending, std::function<void()> close);
  ~One();
  One(const One&) = delete;
  One& operator=(const One&) = delete;

  // So many bytes of the stream are there now. May close its own connection. A stream has been at
  // it since it last had few.
  void holds(int64_t bytes);

 private:
  const std::shared_ptr<Sending> sending_;  // a coroutine of a server that has ended may end later
  const std::function<void()> close_ = {};  // a stream's
  At at_;                                   // the end: it does not count
};

}  // namespace twinkle::server
