// Promises of results: a client that submitted work polls with the id that it was given, and is
// answered when the work has ended. Used by the service's thread alone.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/fields/options.h"
#include "twinkle/base/json.h"
#include "twinkle/server/history/reader.h"
#include "twinkle/server/history/state.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/loop.h"

namespace twinkle::server {

struct PromiseOptions {
  std::chrono::milliseconds hold{30000};
  std::chrono::milliseconds keep_read{600000};
  int64_t max_open = 32768;
  int64_t max_open_bytes = int64_t{4} << 30;
  int64_t max_result_bytes = int64_t{256} << 20;
  int64_t max_sample_bytes = int64_t{64} << 20;
  int64_t max_training_bytes = int64_t{64} << 20;

  static constexpr auto fields() {
    using O = PromiseOptions;
    return std::tuple{
        option("hold_seconds", &O::hold, between(0.001, 40),
               "seconds that a poll waits for its result; then 408, come again. The SDK gives up "
               "at 45 s"),
        option("keep_read_seconds", &O::keep_read, between(0, 31536000),
               "seconds that a result which was given is kept, since its response may be lost"),
        option("max_open", &O::max_open, between(1, kMostTokens),
               "accepted requests of one tenant that have not ended, each about a kilobyte of "
               "memory; one more is refused as busy"),
        option("max_open_bytes", &O::max_open_bytes, between(1, kMostBytes),
               "bytes of these, which the journal holds until they have ended, or max_disk of the "
               "tenant's quota if that is less; more are refused as busy"),
        option("max_result_bytes", &O::max_result_bytes, between(0, kMostBytes),
               "bytes of results in memory; beyond them the oldest wait in the journal until they "
               "are asked for"),
        option("max_sample_bytes", &O::max_sample_bytes, between(1, kMostBytes),
               "bytes that the result of one asample may have at most, as num_samples, max_tokens "
               "and topk_sample_logprobs say before it is sampled; what may have more is refused"),
        option("max_forward_backward_bytes", &O::max_training_bytes, between(1, kMostBytes),
               "bytes that the result of one forward_backward or forward may have at most: 4 for "
               "each target of a token, also where a sparse tensor lists none; what has more is "
               "refused")};
  }
};

// What promises ask of the service.
struct PromiseCalls {
  // A result is given for the first time, and in ms since 1970 when.
  std::function<void(const std::string& id, int64_t time_ms)> on_read = [](const auto&...) {};
  // What a poll's 408 tells of what has no result yet: queue_state, and perhaps queue_state_reason.
  std::function<JsonObject(const std::string& id)> queue_state = [](const auto&) {
    return JsonObject{{"queue_state", "active"}};
  };
  // The owner's quota of bytes on disk; 0: none.
  std::function<int64_t(const std::string& owner)> max_disk = [](const auto&) { return 0; };
  // Which record is being done.
  std::function<uint64_t()> sequence = [] { return 0; };
  // Reads the Ended of this sequence back, as History::read does.
  std::function<void(uint64_t sequence, const Reader::Then& then)> read = {};
};

class Promises {
 public:
  Promises(const PromiseOptions& options, Loop& loop, PromiseCalls calls = {})
      : options_(options), loop_(loop), calls_(std::move(calls)) {}

  // Error kBusy: the owner has max_open that are not settled, or with `bytes` more than
  // max_open_bytes of such. One always has room for its first.
  void require_room(const std::string& owner, int64_t bytes = 0) const;
  // Before anything is settled or polled for. `bytes`: of its request. Error kConflict: there is
  // one of this id.
  void open(const std::string& id, const std::string& owner, const std::string& key_id = "",
            int64_t bytes = 0);
  // Keeps the answer and gives it to all who wait. `ended`: the sequence of the Ended that holds
  // it, too, so that it need not stay in memory; 0: none does. Nothing if it is settled, or gone.
  void settle(const std::string& id, Response response, uint64_t ended = 0);
  // Answers where it is settled, at once or when that is read, when it is settled, or with 408
  // after `hold`. 404: no such promise; 503: the disk does not give its answer. The number of a
  // poll that waits; 0: it does not.
  int64_t poll(const std::string& id, Reply reply);
  // A poll that waits, whose client is gone.
  void forget(const std::string& id, int64_t number);
  // Whose it is, and how many there had been when it was opened; null: no such promise.
  struct Made {
    std::string owner;
    int64_t number = 0;     // from 1 on
    uint64_t sequence = 0;  // of the record that opened it
    std::string key_id = {};
    int64_t num_samples = 0;  // that its request asked for; 0: none
  };
  const Made* find(const std::string& id) const;
  int64_t num_ever() const { return num_ever_; }
  // Of one that is open.
  void set_num_samples(const std::string& id, int64_t num) {
    promises_.at(id).made.num_samples = num;
  }

  // A result that was given before the server's start; kept as long as if it were given now.
  void restore_read(const std::string& id, int64_t read_ms);

  // All that there are, and back. Those that are not settled are not there before their commands
  // are done again; they then have the numbers and sequences that they had.
  std::vector<PromiseState> state() const;
  void restore(const State& state);
  // Whether it waits for that: the request was accepted before.
  bool is_carried(const std::string& id) const { return carried_.contains(id); }

  // Forgets it; polls that wait are answered 410, which makes the client give it up.
  void drop(const std::string& id);
  // "; results that were fetched are kept for 600 s".
  std::string told_kept() const;
  int64_t max_sample_bytes() const { return options_.max_sample_bytes; }
  int64_t max_training_bytes() const { return options_.max_training_bytes; }
  int64_t num_open() const { return num_open_; }    // not settled
  int64_t num_held() const { return num_held_; }    // polls that wait
  int64_t num_bytes() const { return num_bytes_; }  // of results in memory

 private:
  struct Waiter {
    int64_t number;
    Reply reply;
  };
  struct Promise {
    Made made;
    int64_t bytes = 0;  // of its request
    bool is_settled = false;
    std::optional<Response> response = {};  // nothing of a settled one: it is read back ...
    uint64_t ended = 0;                     // ... from this record; 0: from none
    std::vector<Waiter> waiters = {};
    int64_t read_ms = 0;  // since 1970; 0: nobody has read it
  };

  void keep(Promise& promise, Response response);
  void count_settled(const Promise& promise);
  Reply take_waiter(const std::string& id, int64_t number);
  void give(const std::string& id, Promise& promise, const Reply& reply);
  void read_back(const std::string& id, uint64_t ended, const Reply& reply);
  void was_read_back(const std::string& id, ReadBack kept, const std::exception_ptr& error);
  void was_read(const std::string& id, Promise& promise);
  void let_go(Promise& promise);
  void drop_later(const std::string& id, Promise& promise, int64_t read_ms);

  const PromiseOptions options_;
  Loop& loop_;
  const PromiseCalls calls_;
  std::map<std::string, Promise> promises_;
  struct Open {
    int64_t num = 0, bytes = 0;
  };
  std::map<std::string, Open> open_of_;  // by owner
  std::map<std::string, Made> carried_;
  std::map<uint64_t, std::string> by_age_;  // by `ended`: whose answers need not be in memory
  std::map<std::string, std::vector<Reply>> readers_;  // of what is being read back, by id
  int64_t next_waiter_ = 1, num_ever_ = 0;
  int64_t num_open_ = 0, num_held_ = 0, num_bytes_ = 0;
};

}  // namespace twinkle::server
