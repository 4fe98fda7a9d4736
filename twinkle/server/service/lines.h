// Lines of operations before the engine, one for the training of each of its tenants and one for
// its samples: first come, first given, as long as the engine has room and the owner's rates let it
// go. Those that wait are words (pending.h): what is read of them has its room before. Used by the
// service's thread alone.
#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "twinkle/base/fields/options.h"
#include "twinkle/server/history/history.h"
#include "twinkle/server/loop.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/server/service/pending.h"
#include "twinkle/server/tenants/hungry.h"
#include "twinkle/server/tenants/rates.h"
#include "twinkle/server/worker.h"

namespace twinkle::server {

// What the engine has at a time. One operation of a line is always given, whatever its size.
struct LineOptions {
  int64_t max_given = 1000;
  int64_t max_bytes = int64_t{64} << 20;
  int64_t max_bytes_total = int64_t{1} << 30;
  std::chrono::milliseconds again{50};

  static constexpr auto fields() {
    using O = LineOptions;
    return std::tuple{
        option(
            "max_given", &O::max_given, between(1, kMostTokens),
            "operations of a run that the engine is given at a time, at most max_queued; the rest "
            "wait on the disk"),
        option(
            "max_given_bytes", &O::max_bytes, between(1, kMostBytes),
            "bytes of requests' bodies that they are made of, or of memory where they take more, "
            "as sparse tensors do; at most max_given_bytes_total"),
        option(
            "max_given_bytes_total", &O::max_bytes_total, between(1, kMostBytes),
            "the same of all runs, in bytes, of which one tenant is given at most as many as are "
            "left; what takes a larger part of seven eighths of max_queued_bytes_total, with its "
            "result, counts as such a part of these"),
        option(
            "give_again_seconds", &O::again, between(0.001, 60),
            "seconds after which the engine is asked again when it had no room; for a checkpoint, "
            "which is read for that, once it has given some back, or after a second")};
  }
};

class Lines {
 public:
  struct Waiting {
    int64_t number = 0;  // of all that wait, in the order of their coming
    std::shared_ptr<Pending> pending;
    bool is_again = false;
  };
  // It is the engine's turn: what the backend accepted, or why it never will.
  using Give = std::function<void(int64_t number, engine::Accepted accepted)>;
  using Fail = std::function<void(int64_t number, std::exception_ptr error)>;
  struct Told {
    Give give;
    Fail fail;
    Fail unread;  // its record cannot be read now, which is told once; it goes on to be asked for
  };

  Lines(const LineOptions& options, Backend& backend, Threads threads, History& history,
        Rates& rates, Told told)
      : options_(options),
        backend_(backend),
        loop_(threads.loop),
        disk_(threads.disk),
        history_(history),
        rates_(rates),
        give_(std::move(told.give)),
        fail_(std::move(told.fail)),
        unread_(std::move(told.unread)),
        max_places_(most_of(backend.stats().max_queued_total)),
        max_held_(most_of(backend.stats().max_queued_bytes_total)),
        hungry_(
            [this](const std::string& owner, int64_t bytes) {
              const Share own = share_of(owner);
              return leaves_places(own, own) && leaves_bytes(own, own, bytes);
            },
            [this](const std::string& owner, int64_t bytes, const std::string& other) {
              const Share own = share_of(owner), its = share_of(other);
              return own.num + 1 <= its.num && own.bytes + bytes <= its.bytes;
            }) {}

  // Behind those of its line. `is_again`: of a replay that does it again: no rate holds it, and the
  // Samples of a version wait for the Publishes that are done again, of which one makes theirs.
  void add(int64_t number, std::shared_ptr<Pending> pending, bool is_again);
  // One that waits is wanted no more. False: it does not wait, or is just being read.
  bool remove(int64_t number, const Pending& pending);
  // The engine has done with one that was given.
  void ended(const Pending& pending);
  // Nothing is given any more.
  void close() { is_closed_ = true; }

  // Error kBusy, by the limit: one that came now would not be given now, as far as is known here,
  // nor when its owner's rates let it go.
  void require_free(const Pending& pending) const;
  // Whether a Sample of this version waits.
  bool has_sample(const std::string& tenant, int64_t version) const;
  int64_t num_waiting() const { return num_waiting_; }

 private:
  struct Share {  // that the engine has, or that have room
    int64_t num = 0, bytes = 0;
    void add(int64_t more, int64_t of_each) { num += more, bytes += more * of_each; }
  };
  struct Full {
    int64_t bytes = 0;  // that the engine held
    std::chrono::milliseconds time{0};
  };
  struct Line {
    std::deque<Waiting> waiting;
    Share given;
    bool is_reading = false;  // the first, from the journal, or what it reads, or waits for that
    bool is_refused = false;  // the first just now, by an engine without room, or by the disk
    bool is_timed = false;    // it is asked for again, in a while
    bool has_room = false;    // the first: it is being read, or in memory
    // Since the first's checkpoint was read, for which the engine had no room.
    std::optional<Full> full = {};
  };

  static std::string samples_of(const std::string& tenant) { return "sample " + tenant; }
  static std::string key_of(const Pending& pending) {
    return pending.samples ? samples_of(pending.tenant) : "train " + pending.tenant;
  }
  // The rest is for what comes by other ways: snapshots, samplers' weights, runs that are parked.
  static int64_t most_of(int64_t total) { return total - total / 8; }
  static bool publishes_again(const Waiting& w) { return w.is_again && w.pending->publishes; }
  int64_t size_of(const Pending& pending) const;
  void ask_rates(const std::string& key, const std::shared_ptr<Pending>& pending);
  bool has_room(const Line& line, int64_t bytes) const;
  Share share_of(const std::string& owner) const;
  bool leaves_places(const Share& own, const Share& all) const;
  bool leaves_bytes(const Share& own, const Share& all, int64_t bytes) const;
  bool has_room_in_all(const std::string& owner, int64_t bytes) const;
  void count(Line& line, const Pending& pending, int64_t num);
  void give_room_back(Line& line, const Pending& pending);
  void go_on(const std::string& key);
  bool take_room(const std::string& key);
  bool give_first(const std::string& key);
  bool give_checked(const std::string& key, const std::function<engine::Accepted()>& check);
  void check_on_disk(const std::string& key);
  void read_checkpoint(const std::string& key);
  void next_checkpoint(const std::string& owner);
  bool is_still_full(const Line& line) const;
  void read_first(const std::string& key);
  void ask_again(const std::string& key, std::chrono::milliseconds pause);
  void fail_first(const std::string& key, const std::exception_ptr& error);
  void fail_read(const std::string& key, const std::exception_ptr& error);
  void remove_first(const std::string& key);
  void wake_others();

  const LineOptions options_;
  Backend& backend_;
  Loop& loop_;
  Worker& disk_;  // that reads checkpoints
  History& history_;
  Rates& rates_;
  const Give give_;
  const Fail fail_, unread_;
  const int64_t max_places_, max_held_;        // of the engine's for all lines; bytes
  std::map<std::string, Line> lines_;          // with something that waits or was given
  Hungry hungry_;                              // lines whose first waits for room in all
  std::map<std::string, int64_t> publishing_;  // Publishes that wait to be done again, by tenant
  std::map<std::string, Share> shares_;        // by owner
  Share all_;                                  // of all owners
  // By owner: lines whose first reads a checkpoint. One of an owner's is read at a time, and the
  // next when the engine has that one.
  std::map<std::string, std::deque<std::string>> readers_;
  int64_t num_waiting_ = 0;
  bool is_closed_ = false;
};

}  // namespace twinkle::server
