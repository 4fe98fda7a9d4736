// Wait list for what tenants share of the engine: its room, of which each has at most as much as it
// leaves free, and each one's own rates. The next tenant is that of deficit round robin
// (base/fair_share.h), with its longest wait: samples first, until they have passed a training
// operation by its cost. While the next finds no room, only tenants that hold less than its own go
// on; who waits for its own tenant's room or rates holds up nobody else. Used by the service's
// thread alone.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/base/fair_share.h"
#include "twinkle/server/loop.h"
#include "twinkle/store/keys/quota.h"

namespace twinkle::server {

class WaitList {
 public:
  // The first operation of a queue.
  struct Head {
    std::string key = {}, owner = {};  // the queue's, which is not empty
    bool is_sample = false;
    bool is_rated = true;  // the owner's rates hold it; what they do not goes before
    int64_t cost = 1;      // in the room's units, above 0
    int64_t tokens = 0;    // that it takes of its rate
  };

  // `quota`: an owner's, now. `again`: somebody may go whom rates have held.
  WaitList(int64_t room, Loop& loop, std::function<store::Quota(const std::string& owner)> quota,
           std::function<void()> again)
      : room_(room), loop_(loop), quota_(std::move(quota)), again_(std::move(again)) {}

  void add(const Head& head);
  void remove(const Head& head);
  // Takes room and tokens for the next and returns its key; nothing: none can go.
  std::optional<std::string> take();
  void give_back(const Head& head);

  // One that is larger than the room goes alone.
  bool fits(const Head& head) const { return all_ == 0 || held(head.owner) + head.cost <= left(); }
  // One that came now, with an empty key, would be next and have room.
  bool would_go(const Head& head);
  int64_t held(const std::string& owner) const;
  int64_t left() const { return std::max<int64_t>(0, room_ - all_); }

  // A minute's worth may be used at once. A request goes while its tenant owes nothing, whatever it
  // will take itself: what it is known to take is paid then, the rest when it has ended. So the
  // average holds, and a request that is longer than a minute's worth goes.
  bool may_go(const std::string& owner);
  bool is_held(const std::string& owner) const;  // when that was asked last, it might not
  void spend(const std::string& owner, int64_t tokens, double seconds);
  // Text for the client of one that is held, `place` of `num` in its queue and behind `before`
  // tokens: the limit and the expected wait, if the owner's other queues go by turns; "": the
  // owner's rates do not hold it.
  std::string reason(const std::string& owner, int64_t place, int64_t num, int64_t before) const;

 private:
  struct Bucket {
    double level = 0, per_second = 0;
    void fill(double per_minute, double seconds);
    bool is_limited() const { return per_second > 0; }
    bool may_go() const { return !is_limited() || level > 0; }
    // Seconds until it is above 0, when so much more is taken from it. Below 0: no limit.
    double wait(double more) const { return is_limited() ? (more - level) / per_second : -1; }
  };
  using Heads = std::map<std::pair<bool, uint64_t>, Head>;  // by is_rated and how they came
  struct Tenant {
    Account account;
    int64_t held = 0;
    Heads training, samples;
    int64_t passed = 0;  // cost of samples that have passed the first of `training`
    Bucket tokens, seconds;
    std::chrono::milliseconds filled{0};  // when these were
    bool is_timed = false;
    Heads& heads(bool is_sample) { return is_sample ? samples : training; }
    bool is_limited() const { return tokens.is_limited() || seconds.is_limited(); }
    bool may_go() const { return tokens.may_go() && seconds.may_go(); }
  };

  const Heads::value_type* next_of_tenant(const std::string& owner, const Tenant& tenant);
  std::optional<size_t> choose(std::vector<Claim>& claims, std::vector<const Head*>& heads);
  Tenant* limited(const std::string& owner);
  void forget(const std::string& owner);

  const int64_t room_;
  Loop& loop_;
  const std::function<store::Quota(const std::string&)> quota_;
  const std::function<void()> again_;
  std::map<std::string, Tenant> tenants_;  // that wait, or hold something, or are limited
  int64_t all_ = 0;                        // that they hold
  uint64_t next_turn_ = 1;
};

}  // namespace twinkle::server
