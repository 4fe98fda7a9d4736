// Watches whether the ranks of a script live. Every rank but 0 has a connection to rank 0, which
// passes on what it hears: a connection that ends names its rank, as no collective's error does,
// and a rank is heard of each second, and four times in the timeout, however long its script does
// something else. A fork of a rank's process has no part in this, nor its connection, which ends
// with the process itself. Any thread.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/base/guarded.h"

namespace twinkle::mesh {

class Watch {
 public:
  // Where ranks meet that have ended: others that wait for them elsewhere have failed.
  static constexpr const char* kEnd = "the end of an engine";

  // `sockets`: connected, taken over; of rank 0 one to each other rank, in their order; of the
  // others the one to rank 0. A rank that is silent for `timeout_s` is taken for lost.
  Watch(int rank, int size, const std::vector<int>& sockets, double timeout_s);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Why ranks can't go on together, in `scope`, the name of what they do, or at all; empty: they
  // can.
  std::string why(const std::string& scope) const;
  // The same, after a call has failed with `error`, which may be seen before it is known whose end
  // it was: waits for a second at most. `error`, if nothing is heard of.
  std::string why_after(const std::string& error, const std::string& scope) const;
  // This rank can't go on in the scope, or, where that is empty, at all: every rank hears of it.
  // The first one to be said counts.
  void fail(const std::string& scope, const std::string& why);
  // The script of this rank has ended, and well: that is no failure unless others wait for it.
  void end();

  // While it lives, its thread of this rank waits for the others at `place`. Ranks that wait for
  // each other at different ones for the timeout have failed, unless a thread that has waited
  // before does something else: it may come.
  class Waiting {
   public:
    Waiting(Watch& watch, std::string place);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Watch& watch_;
    int64_t id_;
  };

  // Who has waited for longer than the timeout, where, and for whom, who lives; empty: nobody. On
  // every rank, as the first one, which knows where all wait, has found it last.
  std::string late() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Places = std::map<int64_t, std::string>;  // at which a rank waits, by a number of its own
  struct Known {
    Clock::time_point heard = Clock::now();
    Places places;
    size_t num_busy = 0;  // threads that have waited, live, and do something else
    Clock::time_point since = Clock::now();  // both have been so
    bool has_ended = false;
  };
  struct Peer {
    int rank, socket;
    std::string unread;  // a frame's beginning
  };

  void loop();
  bool read(Peer& peer);  // false: the connection has ended
  void take(int from, const std::string& frame);
  void send(int except, const std::string& frame) REQUIRES(mutex_);
  void say_so(int except, const std::string& scope, const std::string& why) REQUIRES(mutex_);
  void lost(const Peer& peer);
  void find_silent();
  void find_apart() REQUIRES(mutex_);
  std::string find_late() const REQUIRES(mutex_);
  void tell_late() REQUIRES(mutex_);
  std::string alive() REQUIRES(mutex_);
  void note(int rank, const std::string& alive) REQUIRES(mutex_);
  std::string known_why(const std::string& scope) const REQUIRES(mutex_);

  const int rank_, size_, process_;
  const double timeout_s_;
  const int wake_;
  mutable Mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Peer> peers_;                        // the thread's, but for the sockets, which stay
  std::map<int, Known> known_ GUARDED_BY(mutex_);  // by rank, this one's, too
  std::map<std::string, std::string> why_ GUARDED_BY(mutex_);  // by scope
  std::string ended_ GUARDED_BY(mutex_);
  std::string late_ GUARDED_BY(mutex_);
  int64_t num_places_ GUARDED_BY(mutex_) = 0;
  std::set<int> threads_ GUARDED_BY(mutex_);  // that have waited, as the system numbers them
  bool ends_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace twinkle::mesh
