// What the service has asked of the engine, from its start to its end. How an operation ends is
// written down before it changes anything; a replay takes the end from the record, and asks the
// engine again only for what changes the engine. Used by the service's thread alone.
#pragma once
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "twinkle/server/history/history.h"
#include "twinkle/server/http/message.h"
#include "twinkle/server/loop.h"
#include "twinkle/server/service/backend.h"
#include "twinkle/server/service/lines.h"
#include "twinkle/server/service/pending.h"
#include "twinkle/server/service/promises.h"
#include "twinkle/server/tinker/state_paths.h"

namespace twinkle::server {

// What ended otherwise: Tinker's RequestFailedResponse.
Response failure(const std::string& text, bool is_users);

class Operations {
 public:
  Operations(const LineOptions& lines, Backend& backend, Threads threads, History& history,
             Rates& rates, Promises& promises);
  // `state`: the folder whose files a client knows by tinker:// paths alone.
  void hide_paths_of(const std::filesystem::path& state) { paths_.emplace(state); }
  // Told of each end what it took, of a replay, too.
  using OnUsed = std::function<void(const Promises::Made& of, const Ended&)>;
  void on_used(OnUsed told) { on_used_ = std::move(told); }
  // Told of each operation that failed by no fault of its client's why it did, with the real paths.
  void on_trouble(std::function<void(const std::string& text)> told) {
    on_trouble_ = std::move(told);
  }

  // Operations of one tenant in the order of these calls; each is given to the engine when it has
  // room. `covered`: of a replay whose engine has already been given what it changed.
  void start(std::shared_ptr<Pending> pending, bool covered = false);
  // Error kBusy: the engine would not be given it at once.
  void require_room(const Pending& pending) const;
  // The Samples of this session's samplers fail where they have not been done, and wait for nothing
  // more: nobody asks for them. What a replay finds unfinished is done.
  void cancel_samples(const std::string& session);
  // The same of one Sample with a listener; nothing, where it has ended.
  void cancel(const std::string& request_id);
  // Whether a Sample of a tenant's version waits for its turn.
  bool has_sample(const std::string& tenant, int64_t version) const;
  int64_t num_waiting() const { return lines_.num_waiting(); }  // for the engine's room

  // A record of a replay. Error kInvalid: it has no beginning.
  void replay(const Ended& record);
  int64_t num_running() const { return std::ssize(entries_); }  // that have not ended
  int64_t num_again() const;  // of these those that a replay has the engine do again
  // Tenants of Samples that a replay found unfinished.
  std::set<std::string> waiting_samplers() const;
  // From here on all operations of this tenant of the engine fail, with this text.
  void lose(const std::string& tenant, const std::string& why) { lost_[tenant] = why; }
  // Why the engine could not make this tenant, of which it then says no more than that there is
  // none: what the tenant's operations fail with. Null: it has made it.
  void explain(const std::string& tenant, const std::exception_ptr& error) {
    if (error)
      unmade_[tenant] = error;
    else
      unmade_.erase(tenant);
  }
  // Tenants whose weights a replay could not get, since the checkpoint that they began with is not
  // there, and why.
  const std::map<std::string, std::string>& lost() const { return lost_; }
  // Gives the engine what has no recorded end; false while what has one is not done again. Error
  // kInvalid: it ended otherwise than the record says, and `must_agree`.
  bool finish_replay(bool must_agree);

  // The engine is given nothing more, and no end is recorded: the next start does it.
  void close() {
    closing_ = true;
    lines_.close();
  }

 private:
  struct Entry {
    std::shared_ptr<Pending> pending;
    bool covered = false;
    bool is_asked = false;  // that the engine does it: it is in its line, or given, or has ended
    bool is_given = false;
    bool is_cancelled = false;
    int64_t engine_id = 0;  // where it was given
    std::optional<Ended> recorded, came;
  };
  using Entries = std::map<int64_t, std::shared_ptr<Entry>>;

  void ask(Entry& entry, int64_t number, bool is_again = false);
  void give(int64_t number, engine::Accepted accepted);
  void cancel(int64_t number);
  void end_cancelled(int64_t number);
  void tell(int64_t number, const Used& used, engine::Outcome outcome);
  void came(int64_t number, engine::Outcome outcome);
  struct Failure {  // as a client may be told of it
    std::string text;
    bool is_users;
  };
  Response answer_of(const Pending& pending, const engine::Outcome& outcome) const;
  Failure failure_of(const Pending& pending, const std::exception_ptr& error) const;
  void write(int64_t number);
  void look_for_checkpoint(const Entry& entry);
  void apply(const Entry& entry, const Ended& ended, uint64_t sequence);
  void compare(const Entry& entry);

  Backend& backend_;
  Loop& loop_;
  History& history_;
  Promises& promises_;
  std::optional<StatePaths> paths_;
  OnUsed on_used_ = [](const auto&...) {};
  std::function<void(const std::string&)> on_trouble_ = [](const auto&) {};
  int64_t next_ = 1;
  Entries entries_;                         // in the order of their starts
  std::map<std::string, int64_t> numbers_;  // by request_id
  std::string differs_;                     // which operation did, in a replay
  std::map<std::string, std::string> lost_;
  std::map<std::string, std::exception_ptr> unmade_;  // by tenant
  bool closing_ = false;
  Lines lines_;
};

}  // namespace twinkle::server
