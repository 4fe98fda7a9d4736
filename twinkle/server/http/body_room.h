// Memory that the bodies of requests may take together. A body has its room from before it is read
// until nobody needs what was in it: a request that waits for room costs a connection and no
// memory. Used by the service's thread alone; what was admitted may end on any.
#pragma once
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>

#include "twinkle/base/fields/options.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/loop.h"

namespace twinkle::server {

struct BodyRoomOptions {
  int64_t max_bytes = int64_t{2} << 30;
  int64_t max_body_bytes = int64_t{256} << 20;
  // Not longer than these: always admitted, since polls and heartbeats must not wait.
  int64_t small_bytes = int64_t{64} << 10;
  std::chrono::milliseconds patience{20000};

  static constexpr auto fields() {
    using O = BodyRoomOptions;
    return std::tuple{
        option("max_body_bytes_total", &O::max_bytes, between(1 << 20, kMostBytes),
               "bytes of all requests that are being read or written down, at least "
               "max_body_bytes; one more is not read until there is room"),
        option("max_body_bytes", &O::max_body_bytes, between(1 << 20, int64_t{2} << 30),
               "bytes of one request, and of what it decodes to; a longer one is 413"),
        option("small_body_bytes", &O::small_bytes, between(0, 1 << 20),
               "bytes of a body that is always admitted, so that polls and heartbeats do not wait"),
        option("body_patience_seconds", &O::patience, between(0, 50),
               "seconds that a request waits for room for its body; then 503, come again. Clients "
               "give a request up after 60 s")};
  }
};

class BodyRoom {
 public:
  // Outlived by `loop`. Error kInvalid: max_bytes are fewer than max_body_bytes.
  BodyRoom(const BodyRoomOptions& options, Loop& loop);
  ~BodyRoom() { close(); }  // those who wait are dropped
  BodyRoom(const BodyRoom&) = delete;
  BodyRoom& operator=(const BodyRoom&) = delete;

  // A Handler's `admit`. Those who wait are served in turn. A sample is not held back but answered
  // 429 at once, by which the SDK slows down.
  void admit(const Head& head, Admit admit);

  // From here on nothing is posted to the loop, whichever body ends. Any thread.
  void close();

  int64_t num_bytes() const;  // that are held
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }

 private:
  struct Books;
  class Room;
  struct Waiting {
    int64_t number, bytes;
    Admit admit;
  };

  bool has_room(int64_t bytes) const;
  void take(int64_t bytes, const Admit& admit);
  void go_on();
  void give_up(int64_t number);

  const BodyRoomOptions options_;
  Loop& loop_;
  const std::shared_ptr<Books> books_;
  std::list<Waiting> waiting_;
  int64_t next_number_ = 1;
};

}  // namespace twinkle::server
