// The service, whatever protocol asks for it. A command is decided here once, applied, journalled,
// and answered when it is written; what the engine has to do for it goes to the queues, and its end
// is a record, too. After a start what the runs' snapshots lack is done again, while all else is
// served. docs/life-of-a-request.md names the functions that a request passes. Used by the
// service's thread alone, but for open().
#pragma once
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/options.h"
#include "twinkle/server/loop.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/server/worker.h"
#include "twinkle/serving/domain/clock.h"
#include "twinkle/serving/domain/domain.h"
#include "twinkle/serving/domain/state_paths.h"
#include "twinkle/serving/domain/task.h"
#include "twinkle/serving/log/log.h"
#include "twinkle/serving/waiting/adapters.h"
#include "twinkle/serving/waiting/futures.h"
#include "twinkle/serving/waiting/queues.h"
#include "twinkle/store/keys/quota.h"

namespace twinkle::server::core {

struct SavingOptions {
  double again_seconds = 10;
  int64_t journal_bytes = int64_t{256} << 20;

  static constexpr auto fields() {
    using O = SavingOptions;
    return std::tuple{
        option("again_seconds", &O::again_seconds, between(0.001, 1e6),
               "seconds of computing of a run that a start does again at most, behind which it is "
               "saved; one operation may be longer"),
        option("journal_bytes", &O::journal_bytes, between(1024, kMostBytes),
               "bytes that the journal grows by before the service's state takes the place of what "
               "is in it; a start reads the state and that much")};
  }
};

struct CoreOptions {
  FutureOptions futures;
  store::JournalOptions journal;
  SavingOptions saving;
  QueueOptions queues;
  int64_t max_sessions = 1'000'000;
  int64_t max_samplers = 1'000'000;
  double silent_hours = 0;
  std::chrono::milliseconds park_after{0};

  static constexpr auto fields() {
    using O = CoreOptions;
    return std::tuple{
        group("futures", &O::futures),
        group("journal", &O::journal),
        group("saving", &O::saving),
        group("queues", &O::queues),
        option("max_sessions", &O::max_sessions, between(1, kMostTokens),
               "sessions of one tenant, also those that have finished, each about half a kilobyte "
               "of memory; one more is refused"),
        option("max_samplers", &O::max_samplers, between(1, kMostTokens),
               "samplers of one tenant, each about a kilobyte of memory; one more is refused"),
        option("silent_hours", &O::silent_hours, between(0, 1e6),
               "hours without a request after which a run does not count toward its tenant's "
               "max_runs any more; 0: it always counts"),
        option("park_seconds", &O::park_after, between(0, 31536000),
               "seconds without a request of its client after which a run waits in a file for the "
               "next; 0: never")};
  }
};

// A numbered request of a run.
struct Numbered {
  std::string run;
  int64_t seq_id = 0;
  std::string key_id;
  bool breaks_window = false;  // it is to accumulate: so does its failure
  std::string note = {};
  Checkpoint saves = {};     // a Save's under a name
  std::string sampler = {};  // a Publish's
};

// A request of a sampler.
struct Prompted {
  std::string sampler;
  int64_t seq_id = 0;
  std::string key_id;
  std::string note = {};
};

// The sizes of all files below; those that vanish meanwhile count as they were, or nothing.
int64_t bytes_below(const std::filesystem::path& folder);

std::string text_of(const std::exception_ptr& error);

// A new id, as a client might see anywhere: 32 hexadecimal digits of the system's randomness.
std::string new_id();

class Core {
 public:
  Core(Backend& backend, Loop& loop, std::filesystem::path state, const CoreOptions& options = {});
  ~Core() { close(); }
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  // Applies what the journal in the state's folder holds, and writes down what follows; begins to
  // do again what snapshots lack. Returns the number of records. Another thread than the service's,
  // which does not use this before. Error kInvalid: damaged, or of another model; or of
  // `other_arithmetic`, unless that is accepted; or as of require_whole.
  int64_t open(const Opened& opened, bool accept_other_arithmetic);
  // From here on nothing is told, whatever the engine ends: the next start does it.
  void close();
  // Saves each run of which the engine has been given more than its snapshot has.
  Task<> save_runs();

  // Decided by the caller: applied, and written when the task ends. Error kBusy: the disk refuses.
  template <class Command>
  Task<> commit(Command command) {
    require_writable();
    const uint64_t sequence = record(command);
    co_await log_.written(sequence);
  }

  // Its future's id. Error kInvalid: limits refuse a run, or the engine does.
  Task<std::string> create_run(CreateRun create);

  // Takes a request by its number and returns its future's id: that of the first with the number.
  // `make` makes the operation, whose folder is below the state's; its error, or the engine's, is
  // the future's. Error kInvalid: a number that is below 1, or too far ahead, a run that has
  // finished; kBusy: there is no room.
  template <class Make>
  Task<std::string> submit(Numbered numbered, Make make) {
    const Run& run = require_takes(numbered);
    const std::string id = request_id(run.id, numbered.seq_id);
    if (has_come(run, numbered.seq_id)) {
      co_await log_.written(log_.sequence());
      co_return id;
    }
    std::string why;
    std::optional<engine::Operation> operation;
    try {
      operation.emplace(make(run));
      backend_.validate(*operation);
    } catch (const Error& e) {
      if (e.code == Code::kBusy || e.code == Code::kInternal) throw;
      why = e.what();
    }
    const int64_t now = milliseconds_since_1970();
    if (!operation || !why.empty()) {
      Fail failure{numbered.run, numbered.seq_id,       now, numbered.key_id,
                   why,          numbered.breaks_window};
      co_await commit(std::move(failure));
    } else {
      co_await commit_submit(std::move(numbered), now, std::move(*operation));
    }
    co_return id;
  }

  // Its future's id. The same rules, but that what is wrong is thrown, and kBusy: it would wait.
  Task<std::string> sample(Prompted prompted, engine::Sample sample);
  // Samples what the sampler does, though no session knows it, and keeps nothing: neither request
  // nor result is journalled. `accepted`: called when it waits for the engine, which may yet refuse
  // it. Errors of both as of sample(), and kConflict: it was cancelled.
  template <class Accepted>
  Task<engine::Outcome> sample_live(Sampler sampler, engine::Sample sample,
                                    engine::SampleHooks hooks, Accepted accepted) {
    const std::shared_ptr<Queued> queued =
        co_await queue_live(sampler, std::move(sample), std::move(hooks));
    accepted();
    co_return co_await carry_out_live(std::move(sampler), queued);
  }
  // Nobody wants the sample of this sampler any more. Nothing, where it has ended.
  void cancel(const std::string& sampler);
  // The engine has what the sampler samples, so that its first request is not slow. Errors as of
  // Adapters::ready.
  Task<> prepare(Sampler sampler);
  Task<Result> wait(std::string future, Later<bool> gone = {}) {
    return futures_.wait(std::move(future), std::move(gone));
  }
  // The owner's rate that holds a future's request, itself or one before it, or "".
  std::string held_by(const std::string& future) const;
  // Why a future's request waits, or "".
  std::string why_waits(const std::string& future) const;

  const Domain& domain() const { return domain_; }
  const CoreOptions& options() const { return options_; }
  const Log& log() const { return log_; }
  const Futures& futures() const { return futures_; }
  const Queues& queues() const { return queues_; }
  Backend& backend() { return backend_; }
  Loop& loop() { return loop_; }
  Tasks& tasks() { return tasks_; }
  Worker& disk() { return disk_; }
  const std::filesystem::path& state() const { return state_; }
  int64_t num_again() const {
    return num_again_;
  }  // operations that are done again and have not ended
  int64_t num_done_again() const { return num_done_again_; }  // since the start
  int64_t num_recovering() const {  // runs that the engine does not have yet as they were
    return std::ranges::count(live_, false, [](const auto& at) { return at.second.is_restored; });
  }
  int64_t num_states() const { return num_states_; }  // that took the place of records
  int64_t num_states_given_up() const { return num_states_given_up_; }
  store::Quota quota_of(const std::string& owner, const std::string& key_id = {}) const {
    return quota(owner, key_id);
  }
  // A client of the session is there.
  void heard(const std::string& session) { heard_.insert(session); }
  // Told of each operation that failed by no fault of its client's why it did, with real paths.
  std::function<void(const std::string& text)> on_trouble = [](const auto&) {};
  // The quota of a tenant now, with the weight and priority of its key where that has its own.
  std::function<store::Quota(const std::string& owner, const std::string& key_id)> quota =
      [](const auto&...) { return store::Quota(); };

 private:
  // A run's, in this process alone.
  struct Live {
    int64_t given = 0;        // the last number that the engine has been given
    int64_t released = 0;     // versions that the engine has let go of, or never had
    int64_t again = 0;        // operations that are done again and have not ended
    bool is_restored = true;  // false: until the engine has all that it had before the start
    bool is_saving = false, is_put_off = false;
    int64_t quiet = 0;                 // checks without a word of its client
    std::vector<Later<bool>> waiting;  // for an end
  };

  // A run that has finished forgets requests that waited for others; their futures are known.
  bool has_come(const Run& run, int64_t seq_id) const {
    return came(run, seq_id) || domain_.future(request_id(run.id, seq_id));
  }
  void require_writable() const;
  // Applied and appended; what follows has begun. Memory that ends behind the record ends the
  // process: the next start goes on from the record. `of`: besides the sequence, for apply().
  template <class Command, class... Of>
  uint64_t record(const Command& command, std::optional<engine::Operation> fresh = {}, Of... of) {
    const uint64_t sequence = log_.append(command);
    [&]() noexcept {
      domain_.apply(command, sequence, std::move(of)...);
      follow(sequence, std::move(fresh));
    }();
    return sequence;
  }
  const Run& require_takes(const Numbered& numbered) const;
  Task<> commit_submit(Numbered numbered, int64_t now, engine::Operation operation);
  void follow(uint64_t sequence, std::optional<engine::Operation> fresh = {});
  Task<> tell(std::string future, uint64_t sequence);
  void end(Ended ended);
  Ended ended_of(const std::string& id, const Used& used, const engine::Outcome& outcome);
  void describe(Ended& ended, const std::exception_ptr& error);
  engine::Create create_of(const Run& run, const std::string& folder) const;

  Task<engine::Outcome> begin_run(std::string run, std::string folder, bool with_optimizer,
                                  bool exact, bool is_again);
  Task<> make_run(std::string run, bool is_again);
  std::shared_ptr<Queued> queued_of(const Run& run, int64_t seq_id, bool is_again);
  Task<> carry_out(std::string run, int64_t seq_id, std::optional<engine::Operation> fresh,
                   bool is_again);
  Task<> do_again(std::string run, int64_t seq_id);
  Task<> restore(std::string run);
  void recover();
  Task<> recovered(std::string run);
  void lose(const std::string& run, const std::string& why);

  struct Place {
    std::string tenant;
    int64_t version = 0;
  };
  Task<Place> place_of(Sampler sampler);
  Task<std::shared_ptr<Queued>> queue_live(Sampler sampler, engine::Sample sample,
                                           engine::SampleHooks hooks);
  Task<engine::Outcome> carry_out_live(Sampler sampler, std::shared_ptr<Queued> queued);
  Task<> carry_out_sample(std::string future, Sampler sampler, std::shared_ptr<Queued> queued);

  Task<> save(std::string run);
  Task<std::exception_ptr> save_one(engine::Save save);
  void release(const std::string& run);
  void changed(const std::string& run);
  Task<> compact();
  void keep(const std::string& checkpoint);
  Task<> expire(std::string path);
  Task<> give_up_missing(std::string run);
  void remove_leftovers() const;
  void remove_folders();
  Task<> remove_folder(std::string folder, uint64_t sequence);
  void check_quiet();

  Backend& backend_;
  Loop& loop_;
  const std::filesystem::path state_;
  const CoreOptions options_;
  const StatePaths paths_;
  Log log_;
  Domain domain_;
  Futures futures_;
  Worker disk_, reads_;
  Queues queues_;
  Adapters adapters_;
  std::map<std::string, Live> live_;                        // by run
  std::map<std::string, std::shared_ptr<Queued>> samples_;  // by future
  std::set<std::string> heard_, removing_;
  std::map<std::string, int64_t> expiring_;  // checkpoints, and when, in ms since 1970
  std::set<std::string> missing_;            // runs that wait for a number
  int64_t num_again_ = 0, num_done_again_ = 0, num_states_ = 0, num_states_given_up_ = 0;
  int64_t bytes_in_state_ = 0;
  bool is_compacting_ = false, closing_ = false;
  Tasks tasks_;          // the first to go: they use the others
  uint64_t opened_ = 0;  // the sequence of this start
};

}  // namespace twinkle::server::core
