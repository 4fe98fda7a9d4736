// Training runs: each takes its requests in the order of their numbers, however they come, gives
// them to the engine, and ends their promises. A window is the requests up to an optim_step; one
// that has a failure is dropped as a whole, so that no step is made on half a batch. Used by the
// service's thread alone.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "twinkle/server/service/backend.h"
#include "twinkle/server/service/operations.h"
#include "twinkle/server/service/promises.h"
#include "twinkle/server/service/snapshots.h"

namespace twinkle::server {

struct Run {
  std::string id, owner, base_model;
  int64_t rank = 0;

  struct Queued {
    int64_t seq_id = 0;
    std::string request_id;
    // None: it was refused. The number is used up, and its window broken.
    std::optional<engine::Accepted> accepted = {};
    Answered answer = {};
    Operations::OnEnd on_end = {};
    bool accumulates = false;  // or steps: its failure breaks the window
  };
  std::map<int64_t, std::string> requests;             // by seq_id, of all that came
  std::map<int64_t, std::shared_ptr<Queued>> waiting;  // that came before one with a lower number
  int64_t next = 1;                                    // the number that is next in order
  int64_t num_running = 0;                             // of the engine, of this window
  int64_t num_published = 0;                           // versions, which the engine counts likewise
  std::set<std::string> saved;                         // KIND/NAME of saves that were accepted
  std::string broken;                                  // why the window is dropped, or empty
};

class Runs {
 public:
  Runs(Backend& backend, Promises& promises, Operations& operations, Snapshots& snapshots)
      : backend_(backend), promises_(promises), operations_(operations), snapshots_(snapshots) {}

  Run* find(const std::string& id);  // null: none of this id
  Run& add(Run run);

  // Takes a request by its number and returns its request_id: that of the first with the number.
  // Errors as of Backend::check; the number is used up then.
  std::string submit(Run& run, int64_t seq_id, engine::Operation operation, Answered answer,
                     Operations::OnEnd on_end = {});
  // The number of a request that was refused before it became an operation.
  void refuse(Run& run, int64_t seq_id, const std::string& why, bool breaks_window);
  // One that has no number: what creates the run. Later ones wait for it.
  void submit_first(Run& run, const std::string& request_id, engine::Accepted accepted,
                    Answered answer, Operations::OnEnd on_end = {});

 private:
  void go_on(Run& run);
  void start(Run& run, const std::shared_ptr<Run::Queued>& queued);
  void end(const std::string& run_id, const Run::Queued& queued, const Ended& ended);

  Backend& backend_;
  Promises& promises_;
  Operations& operations_;
  Snapshots& snapshots_;
  std::map<std::string, Run> runs_;
};

}  // namespace twinkle::server
