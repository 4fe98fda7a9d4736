// The service's journal: what changes the service is written down first, and done in the order of
// the records. Used by the service's thread, but for open() and close().
#pragma once
#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "twinkle/base/fields/codec.h"
#include "twinkle/server/history/reader.h"
#include "twinkle/server/history/records.h"
#include "twinkle/server/history/state.h"
#include "twinkle/server/history/state_file.h"
#include "twinkle/server/loop.h"
#include "twinkle/store/journal.h"

namespace twinkle::server {

// The journal's folder in that of a state.
inline constexpr const char* kJournal = "journal";

int64_t milliseconds_since_1970();

class History {
 public:
  // Of a record that is written: its sequence and null; or 0 and an Error of code kBusy, where the
  // disk refuses.
  using Then = std::function<void(uint64_t sequence, std::exception_ptr error)>;

  // What a replay must know beforehand.
  struct Summary {
    std::vector<Opened> starts;
    std::set<uint64_t> dropped;                    // sequences of commands
    std::map<uint64_t, std::string> refused;       // why, by their sequences
    std::map<std::string, Snapshotted> snapshots;  // each run's last
    int64_t last_ms = 0;                           // since 1970; when the last record was written
    std::optional<uint64_t> state;                 // the last sequence that the state file holds
  };

  struct Replay {
    // Before the first record; false: not yet, ask again.
    std::function<bool(const Summary&)> begin;
    // Does what the record of this sequence says. Called for what changes something: neither for a
    // Dropped and the command that it names, nor for an Opened, a Refused or a Snapshotted. A State
    // comes first, and then the commands that it carries.
    std::function<void(uint64_t sequence, const AnyRecord&)> apply;
    // All records were given, and what follows will be written; false: not yet, ask again.
    std::function<bool()> finish;
    // Called while another thread waits for the service's thread: a test runs its loop.
    std::function<void()> turn = [] {};
  };

  explicit History(Loop& loop) : loop_(loop) {}

  // Opens the folder's journal, and has the service's thread do again what it holds, while the
  // caller waits. Before, or without it, nothing is kept, and what is appended is done at once.
  // Returns how many records that were. Errors as of store::Journal and of `replay`.
  int64_t open(const std::filesystem::path& folder, const Replay& replay,
               store::JournalOptions options = {});
  // Writes and syncs what was appended, gives up a state that is being written, and refuses what
  // follows. `also` is done with it, by the service's thread.
  void close(const std::function<void()>& also, const std::function<void()>& turn = [] {});

  // Reads the record of this sequence back, also while a replay goes on. Only where one was
  // appended, or replayed, from a folder. Errors as of store::Journal::read, but kBusy: the system
  // refuses now; and, told at once: it is closed.
  void read(uint64_t sequence, ReadFor what, const Reader::Then& then);

  bool is_replaying() const { return replaying_; }
  bool keeps() const { return journal_ && !replaying_; }
  // The record that is being done, or was done last; 0: nothing is kept.
  uint64_t sequence() const { return sequence_; }
  // Called behind each record that was written and done: the service is then what the records up to
  // sequence() make of nothing.
  void on_done(std::function<void()> told) { on_done_ = std::move(told); }
  // Of records that were behind the state file at the start, and came since.
  int64_t bytes() const { return bytes_; }
  // Of a torn tail, which open() has cut off: what a process was writing, or power has taken.
  int64_t cut_bytes() const { return journal_ ? journal_->report().cut_bytes : 0; }

  // So that a state can be taken: the next record begins a segment.
  void begin_segment() { journal_->begin_segment(); }
  uint64_t last_segment() const { return journal_->last_segment(); }
  // Puts a state in the place of the records that it holds; `then` is told how it ended. What was
  // there stays if it fails. One at a time.
  void replace_by(State state, std::function<void(std::exception_ptr error)> then);

  // Waits until the record of this sequence, which is written, survives a loss of power, too.
  // False: the disk refuses. Another thread than the service's, which has ended before close().
  bool is_synced(uint64_t sequence);

  // Told why the disk refuses, when the first record is refused, and "" when one is written again.
  void on_trouble(std::function<void(const std::string& why)> told) {
    on_trouble_ = std::move(told);
  }
  // Empty, or why the disk refuses.
  std::string trouble() const { return journal_ ? journal_->trouble() : ""; }

  // Calls `then` on the service's thread when the record is written, or refused; calls come in the
  // order of the records. What tells how a request fared is not refused but waits for the disk, and
  // all that is appended behind it waits with it, or is refused: what comes later may rest on it.
  template <class R>
  void append(const R& record, Then then) {
    if (!journal_ && !closed_) return then(0, nullptr);
    ByteWriter writer(bytes_about(record));
    writer.put(record);
    constexpr bool is_kept =
        std::is_same_v<R, Ended> || std::is_same_v<R, Refused> || std::is_same_v<R, Dropped>;
    append(R::kKind, writer.take(), is_kept ? store::Refusal::kKept : store::Refusal::kTold,
           std::move(then));
  }

 private:
  template <class R>
  static size_t bytes_about(const R& record) {
    constexpr size_t kOthers = 4096;
    if constexpr (requires { record.body; })
      return record.body.size() + kOthers;
    else
      return 0;
  }
  void append(uint8_t kind, std::string payload, store::Refusal refusal, Then then);
  void tell_trouble(const std::exception_ptr& error);
  bool on_loop(const std::function<void()>& turn, const std::function<bool()>& run);
  ReadBack kept(uint64_t sequence);

  Loop& loop_;
  bool replaying_ = false, closed_ = false;
  std::atomic<bool> ends_ = false;  // whoever writes a state gives it up
  uint64_t sequence_ = 0;
  int64_t bytes_ = 0;
  std::function<void()> on_done_ = [] {};
  std::function<void(const std::string&)> on_trouble_ = [](const auto&) {};
  bool is_refused_ = false;  // the last record that was not kept until the disk takes it
  std::filesystem::path folder_;
  std::unique_ptr<store::Journal> journal_;
  std::unique_ptr<CarriedRecords> carried_;  // of the same folder; the reader's
  std::unique_ptr<Reader> reader_;           // of both
  std::thread state_writer_;                 // uses the journal
};

// That a start reads of the journal in this folder: of its segments and its state.
int64_t bytes_to_read(const std::filesystem::path& folder);

// Of the journal in this folder, which a server may be writing. Errors as of StateReader and
// store::read_segment; kInvalid: records are missing.
History::Summary summary_of(const std::filesystem::path& folder);

// Error kInvalid: the state in this folder, by its `starts`, is of another model than `now`, or of
// other weights of it, where both are known; or was last gone on with by other arithmetic, unless
// that is accepted: results will differ from what they would have been.
void require_same(const std::filesystem::path& state, const std::vector<Opened>& starts,
                  const Opened& now, bool accept_other_arithmetic);

}  // namespace twinkle::server
