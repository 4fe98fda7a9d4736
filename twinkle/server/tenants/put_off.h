// Numbers of runs whose requests were told to come again (503). The SDK gives such a request up
// after five minutes and goes on with the next number, for which its run would wait without end.
// In memory: a start takes all that are missing then for told at its end. Used by the service's
// thread alone.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "twinkle/server/loop.h"
#include "twinkle/server/service/runs.h"

namespace twinkle::server {

class PutOff {
 public:
  // From the last 503 of a number until it is given up: more than the SDK's 300 s from the first.
  static constexpr std::chrono::minutes kGivenUpAfter{6};
  // Then, while nothing behind it waits, or the journal refuses.
  static constexpr std::chrono::seconds kAgain{30};
  using GiveUp = std::function<void(const Run& run)>;

  PutOff(Loop& loop, Runs& runs) : loop_(loop), runs_(runs) {}

  // It was told so now. `give_up`, which uses the number up, is called when it has not come again
  // by then and a later one waits.
  void note(const std::string& run_id, int64_t seq_id, GiveUp give_up);

 private:
  using Number = std::pair<std::string, int64_t>;  // run, seq_id
  struct Told {
    std::chrono::milliseconds last;
    GiveUp give_up;
  };
  void wait(const Number& number, std::chrono::milliseconds time);
  void check(const Number& number);

  Loop& loop_;
  Runs& runs_;
  std::map<Number, Told> told_;
};

}  // namespace twinkle::server
