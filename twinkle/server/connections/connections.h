// Chooses the connection that gives way to a new one: the longest idle one of the peer or tenant
// that has most. Idle is one that waits for its peer, to send or to take bytes. There is no fixed
// limit for a peer: a proxy is one peer for all its clients. Knows no socket. On the service's
// thread.
#pragma once
#include <cstdint>
#include <iterator>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

namespace twinkle::server {

class Connections {
 public:
  // Returns its number. It counts for its peer, an address, and is not idle. One that is kept for
  // probes never is: it makes no room for others.
  int64_t add(const std::string& peer, bool is_for_probes = false);
  void remove(int64_t number);
  // From here on it counts for this tenant; "": for its peer again.
  void belongs_to(int64_t number, const std::string& tenant);
  void idles(int64_t number);
  void works(int64_t number);

  // The one to close, which counts no more and is neither idle nor busy until it is removed;
  // nothing where none is idle. Of owners that have as many, the longest idle one is taken.
  std::optional<int64_t> give_way();
  bool gives_way(int64_t number) const { return all_.at(number).gives_way; }
  // Those that are neither for probes nor give way.
  int64_t num_that_count() const { return std::ssize(all_) - num_for_probes_ - num_giving_way_; }

 private:
  struct One {
    std::string peer, owner;
    int64_t idle_since = 0;                // 0: it works
    std::list<int64_t>::iterator at = {};  // in its owner's `idle`
    bool gives_way = false, is_for_probes = false;
  };
  struct Owner {
    int64_t count = 0;
    std::list<int64_t> idle = {};  // the longest first
  };
  using Key = std::tuple<int64_t, int64_t, std::string>;  // count, -since when one idles, owner

  // Changes an owner, and its place in by_count_.
  template <class Change>
  void change(const std::string& owner, Change change);
  std::optional<Key> key_of(const std::string& owner) const;
  void leave(One& one);

  std::map<int64_t, One> all_;
  std::map<std::string, Owner> owners_;
  std::set<Key> by_count_;  // keys of owners with idle ones
  int64_t next_ = 1, num_idled_ = 0, num_giving_way_ = 0, num_for_probes_ = 0;
};

}  // namespace twinkle::server
