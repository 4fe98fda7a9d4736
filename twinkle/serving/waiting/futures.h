// Results of requests, for who polls for them: kept in memory as far as that goes, and else in the
// journal until they are asked for. Used by the service's thread alone.
#pragma once
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "twinkle/base/fields/options.h"
#include "twinkle/server/loop.h"
#include "twinkle/serving/domain/domain.h"
#include "twinkle/serving/domain/task.h"
#include "twinkle/serving/log/log.h"

namespace twinkle::server::core {

struct FutureOptions {
  std::chrono::milliseconds hold{30000};
  std::chrono::milliseconds keep_read{600000};
  int64_t max_open = 32768;
  int64_t max_open_bytes = int64_t{4} << 30;
  int64_t max_result_bytes = int64_t{256} << 20;

  static constexpr auto fields() {
    using O = FutureOptions;
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
               "are asked for")};
  }
};

// Null: it has not ended.
using Result = std::shared_ptr<const Ended>;

class Futures {
 public:
  Futures(const FutureOptions& options, Loop& loop, Log& log, Domain& domain)
      : options_(options), loop_(loop), log_(log), domain_(domain) {}

  // Error kBusy: the owner has max_open that have not ended, or with `bytes` more than
  // max_open_bytes, or `max_disk` where that is less and not 0, of such. One always has room for
  // its first.
  void require_room(const std::string& owner, int64_t bytes, int64_t max_disk) const;

  // How it has ended, which need not be written yet.
  void keep(const std::string& id, const Result& result);
  // Its end is written: who waits for it goes on.
  void complete(const std::string& id);
  // The result; null: there is none after `hold`. Who hangs up sets `gone`. Error kNotFound: no
  // such future; kBusy: the disk does not give it; kConflict: it was given up meanwhile.
  Task<Result> wait(std::string id, Later<bool> gone = {});
  // "; results that were fetched are kept for 600 s".
  std::string retention_note() const;
  // Those that were read before the start are kept as long as if they were read now.
  void keep_read();

  int64_t num_held() const { return num_held_; }    // polls that wait
  int64_t num_bytes() const { return num_bytes_; }  // results' in memory

 private:
  Task<Result> get(const Future& future);
  void was_read(const std::string& id);
  void forget_later(const std::string& id);

  const FutureOptions options_;
  Loop& loop_;
  Log& log_;
  Domain& domain_;
  std::multimap<std::string, Later<bool>> waiting_;
  std::list<std::pair<std::string, Result>> kept_;  // oldest first
  std::map<std::string, std::list<std::pair<std::string, Result>>::iterator> by_id_;
  int64_t num_held_ = 0, num_bytes_ = 0;
};

}  // namespace twinkle::server::core
