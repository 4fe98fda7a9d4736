// Keeps the journal bounded: when it has grown, the service's state takes the place of the records
// that made it. Nothing stops for it: between two records the state is what the records so far make
// of nothing; runs that have gone on since their last snapshot are saved behind what the engine has
// been given of them, and when that is done, the state is written and the records go. Used by the
// service's thread alone.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "twinkle/base/fields/options.h"
#include "twinkle/server/history/history.h"
#include "twinkle/server/loop.h"
#include "twinkle/server/service/runs.h"
#include "twinkle/server/service/snapshots.h"

namespace twinkle::server {

struct TruncationOptions {
  int64_t journal_bytes = int64_t{256} << 20;

  static constexpr auto fields() {
    return std::tuple{
        option("journal_bytes", &TruncationOptions::journal_bytes, between(1024, kMostBytes),
               "bytes that the journal grows by before the service's state takes the place of what "
               "is in it; a start reads the state and that much")};
  }
};

class Truncation {
 public:
  // `take` tells the service's state; nothing: not now.
  Truncation(Loop& loop, History& history, Snapshots& snapshots, Runs& runs,
             TruncationOptions options, std::function<std::optional<State>()> take);

  // Since the start: states that took the place of records, and tries that were given up.
  int64_t num_taken() const { return num_taken_; }
  int64_t num_given_up() const { return num_given_up_; }

 private:
  void go_on();
  void begin_segment();
  void take();
  bool save(const RunState& run);
  void wait_for_saves();
  void write();
  void end(bool is_taken);

  Loop& loop_;
  History& history_;
  Snapshots& snapshots_;
  Runs& runs_;
  const TruncationOptions options_;
  const std::function<std::optional<State>()> take_;

  // What is being waited for, one after another: that the journal has grown, that a segment begins
  // behind what there is, that a state can be taken and runs be saved, that they are, and that the
  // file is written; or some time, behind a try that failed.
  enum class Stage { kGrowing, kSegment, kSaving, kWriting, kPause } stage_ = Stage::kGrowing;
  int64_t bytes_in_state_ = 0, bytes_ = 0;  // of the journal, in the last state and in this
  uint64_t segment_ = 0;                    // that was written to before
  std::optional<State> state_;
  std::map<std::string, int64_t> needed_;  // by run: the number that its snapshot must be behind
  int64_t num_taken_ = 0, num_given_up_ = 0;
};

}  // namespace twinkle::server
