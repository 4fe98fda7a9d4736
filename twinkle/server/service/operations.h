// What the service has asked of the engine, from its start to its end. How an operation ends is
// written down before it changes anything; a replay takes the end from the record, and asks the
// engine again only for what changes the engine. Used by the service's thread alone.
#pragma once
#include <cstdint>
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
#include "twinkle/server/service/promises.h"

namespace twinkle::server {

// The answer of a promise from the operation's result.
using Answered = std::function<Response(const engine::Result&)>;

// What ended otherwise: Tinker's RequestFailedResponse.
Response failure(const std::string& text, bool is_users);
Response failure(const std::exception_ptr& error);

class Operations {
 public:
  // What an end changes; before the promise is settled.
  using OnEnd = std::function<void(const Ended&)>;

  Operations(Backend& backend, Loop& loop, History& history, Promises& promises)
      : backend_(backend), loop_(loop), history_(history), promises_(promises) {}

  // Operations of one tenant in the order of these calls. `covered`: of a replay whose engine has
  // already been given what it changed.
  void start(const std::string& request_id, engine::Accepted accepted, Answered answer,
             OnEnd on_end = {}, bool covered = false);

  // A record of a replay. Error kInvalid: it has no beginning.
  void replay(const Ended& record);
  // Whether the engine does something that will end.
  bool is_running() const;
  // Tenants of Samples that a replay found unfinished.
  std::set<std::string> waiting_samplers() const;
  // Gives the engine what has no recorded end; false while what has one is not done again. Error
  // kInvalid: it ended otherwise than the record says, and `must_agree`.
  bool finish_replay(bool must_agree);

  // The engine is given nothing more, and no end is recorded: the next start does it.
  void close() { closing_ = true; }

 private:
  struct Entry {
    std::optional<engine::Accepted> accepted;  // until the engine has it
    std::string request_id, tenant;
    bool changes_engine = false, samples = false, covered = false;
    Answered answer;
    OnEnd on_end;
    std::optional<Ended> recorded, came;
  };
  using Entries = std::map<int64_t, std::shared_ptr<Entry>>;

  void give(Entry& entry, int64_t number);
  void came(int64_t number, engine::Outcome outcome);
  void write(int64_t number);
  void apply(const Entry& entry, const Ended& ended);
  void compare(const Entry& entry);

  Backend& backend_;
  Loop& loop_;
  History& history_;
  Promises& promises_;
  int64_t next_ = 1;
  Entries entries_;                         // in the order of their starts
  std::map<std::string, int64_t> numbers_;  // by request_id
  std::string differs_;                     // which operation did, in a replay
  bool closing_ = false;
};

}  // namespace twinkle::server
