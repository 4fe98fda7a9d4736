// Memory that the bodies of requests may take together. A body takes room as its bytes come, and
// keeps it until nobody needs what was in it: what a head announces takes none. Used by the
// service's thread alone; what was admitted may end on any.
//
// A body that is partly in waits for the rest of its room, and so do others, which could be for
// ever: so max_body_bytes of all are kept apart, for one body at a time, the first who waits, that
// can therefore come to its end. No owner has more than half of the rest.
#pragma once
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <string>

#include "twinkle/base/fields/options.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/loop.h"

namespace twinkle::server {

struct BodyRoomOptions {
  int64_t max_bytes = int64_t{2} << 30;
  int64_t max_body_bytes = int64_t{64} << 20;
  // So much of each has room always, since polls and heartbeats must not wait.
  int64_t small_bytes = int64_t{64} << 10;
  std::chrono::milliseconds patience{20000};

  static constexpr auto fields() {
    using O = BodyRoomOptions;
    return std::tuple{
        option("max_body_bytes_total", &O::max_bytes, between(1 << 20, kMostBytes),
               "bytes of all requests that have come and are being read or written down, at least "
               "max_body_bytes; where there is no room, more of a request is not read until there "
               "is"),
        option(
            "max_body_bytes", &O::max_body_bytes, between(1 << 20, int64_t{2} << 30),
            "bytes of one request, with what it decodes to where it came compressed; one that is "
            "longer as it comes is 413, one that decodes to more 422"),
        option(
            "small_body_bytes", &O::small_bytes, between(0, 1 << 20),
            "bytes of each body that have room always, so that polls and heartbeats do not wait"),
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

  // What the body of this owner's request may take, which is nothing yet. Those who wait for more
  // are served in turn. A sample is not held back, nor does it pass by who waits, but is answered
  // 429 at once, by which the SDK slows down; where that is plain from its head, before its body is
  // read.
  Admission admit(const Head& head, const std::string& owner);

  // For what comes from here on; bodies keep the room that they have. Error as of the constructor.
  void set(const BodyRoomOptions& options);

  // From here on nothing is posted to the loop, whichever body ends. Any thread.
  void close();

  int64_t num_bytes() const;  // that are held
  int64_t num_waiting() const { return std::ssize(waiting_); }

 private:
  struct Books;
  class Room;
  struct Waiting {
    int64_t number, bytes;
    std::weak_ptr<Room> room;
    HeldRoom::Then then;
  };

  bool is_full() const;
  void wait(const std::shared_ptr<Room>& room, int64_t bytes, HeldRoom::Then then);
  void go_on();
  void give_up(int64_t number);

  BodyRoomOptions options_;
  Loop& loop_;
  const std::shared_ptr<Books> books_;
  std::list<Waiting> waiting_;
  int64_t next_number_ = 1;
};

}  // namespace twinkle::server
