// Rates of tenants, in tokens and in seconds of computing: what is beyond them is held, and goes on
// later. A bucket holds at most a minute's worth and starts full. A request goes while its tenant
// owes nothing, whatever it will take itself: what it is known to take is paid then, what it has
// generated and computed when it has ended, so that the average holds and a request that is longer
// than the bucket still goes. A matter of time alone: no result and no order of a run depends on
// it. Used by the service's thread alone.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "twinkle/server/loop.h"
#include "twinkle/store/keys/quota.h"

namespace twinkle::server {

class Rates {
 public:
  // `quota`: of an owner, now.
  Rates(Loop& loop, std::function<store::Quota(const std::string& owner)> quota)
      : loop_(loop), quota_(std::move(quota)) {}

  // True: it may go now. False: `go` is called when it may. Those of an owner go in the order of
  // these calls, and wait for nobody else's.
  bool enter(const std::string& owner, const std::string& request_id, int64_t tokens,
             std::function<void()> go);
  // One that is held is not wanted any more: it takes nothing, and `go` is not called.
  void leave(const std::string& request_id);
  // What is known only when it has ended.
  void spend(const std::string& owner, int64_t tokens, double seconds);

  // Of one that is held, for its client: the limit, its place and the expected wait, which are the
  // most that they can be, as one that has left from between may still count; or "".
  std::string reason(const std::string& request_id) const;
  int64_t num_held() const { return static_cast<int64_t>(places_.size()); }

 private:
  struct Bucket {
    double level = 0, per_second = 0;
    void fill(double per_minute, double seconds);
    bool is_limited() const { return per_second > 0; }
    // Until it is above 0, when so much more is taken from it.
    double wait(double more) const { return is_limited() ? (more - level) / per_second : 0; }
  };
  struct Ticket {
    std::string request_id;
    int64_t tokens = 0;
    double before = 0;  // of all that were held before it
    std::function<void()> go;
  };
  struct Tenant {
    Bucket tokens, seconds;
    std::chrono::milliseconds at{0};  // when they were filled
    std::map<int64_t, Ticket> held;   // by how many had been held when it came
    int64_t num_ever = 0;
    double tokens_ever = 0;
    bool is_waiting = false;  // for a timer
  };

  // Null: nothing limits it, nor did.
  Tenant* filled(const std::string& owner);
  static bool may_go(const Tenant& tenant);
  void go_on(const std::string& owner);

  Loop& loop_;
  const std::function<store::Quota(const std::string&)> quota_;
  std::map<std::string, Tenant> tenants_;
  struct Place {
    std::string owner;
    int64_t number;
  };
  std::map<std::string, Place> places_;  // by request_id: those that are held
};

}  // namespace twinkle::server
