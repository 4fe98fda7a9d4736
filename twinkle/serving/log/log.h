// The service's journal, as records: appended in the order in which they are applied, and read back
// by their sequence. A record that the disk refuses is kept, and written when the disk takes it; so
// what was applied is what the journal will hold. Used by the service's thread, but for open() and
// close().
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "twinkle/base/fields/codec.h"
#include "twinkle/server/loop.h"
#include "twinkle/server/worker.h"
#include "twinkle/serving/domain/commands.h"
#include "twinkle/serving/domain/domain.h"
#include "twinkle/serving/domain/task.h"
#include "twinkle/serving/log/state_file.h"
#include "twinkle/store/journal.h"

namespace twinkle::server::core {

inline constexpr uint16_t kFormat = 3;  // the only one that is read

class Log {
 public:
  // A record of the folder, or the State in place of the first, or one that the State carries.
  using Visit = std::function<void(const Record& record, uint64_t sequence, bool is_carried)>;

  explicit Log(Loop& loop) : loop_(loop) {}
  ~Log() { close(); }
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  // Opens the folder's journal and gives out what it holds; before, or without it, nothing is kept.
  // Returns how many records those were. Not the service's thread, which does not use it before.
  // Errors as of store::Journal and StateReader, and kInvalid: records are missing, or of another
  // format.
  int64_t open(const std::filesystem::path& folder, const store::JournalOptions& options,
               const Visit& visit);
  // Writes and syncs what was appended, gives up a state that is being written, and keeps nothing
  // from here on. Any thread, when the service's does not use it.
  void close();

  // The sequence that the record has.
  template <class R>
  uint64_t append(const R& record) {
    if (!journal_) return ++sequence_;
    ByteWriter writer(bytes_about(record));
    writer.put(record);
    return append(R::kKind, writer.take());
  }
  // Waits until that record, and so all before it, is written. Error kBusy: the disk refuses; it is
  // written when the disk takes it.
  Task<> written(uint64_t sequence);

  // Reads a record back; those of an owner come one after another. Errors as of
  // store::Journal::read, but kBusy: the system refuses now.
  Task<Record> read(uint64_t sequence, std::string owner);

  // The last record that was appended.
  uint64_t sequence() const { return sequence_; }
  // Bytes of records that came since the state, and since the start of the program.
  int64_t bytes() const { return bytes_; }
  int64_t cut_bytes() const { return journal_ ? journal_->report().cut_bytes : 0; }
  // Empty, or why the disk refuses.
  std::string trouble() const { return journal_ ? journal_->trouble() : ""; }

  // So that a state can be taken: the next record begins a segment.
  void begin_segment() { journal_->begin_segment(); }
  uint64_t last_segment() const { return journal_ ? journal_->last_segment() : 0; }
  // Puts a state in the place of the records that it holds, which are written. Error: what is there
  // stays. One at a time.
  Task<> replace_by(State state);
  // Waits until the record of this sequence survives a loss of power, too. Error kBusy, or false:
  // the disk refuses. Another thread than the service's.
  void wait_synced(uint64_t sequence) const;
  bool is_synced(uint64_t sequence) const;

 private:
  template <class R>
  static size_t bytes_about(const R& record) {
    constexpr size_t kOthers = 4096;
    if constexpr (requires { record.operation; }) return record.operation.size() + kOthers;
    if constexpr (requires { record.result; }) return record.result.size() + kOthers;
    return 0;
  }
  // Memory that ends in the middle ends the process: the next start reads what is written.
  uint64_t append(uint8_t kind, std::string payload) noexcept;
  void was_written(uint64_t sequence);
  void watch();
  Record read_now(uint64_t sequence);

  Loop& loop_;
  std::filesystem::path folder_;
  uint64_t sequence_ = 0, written_ = 0;
  int64_t bytes_ = 0;
  bool is_watched_ = false;
  std::multimap<uint64_t, Later<bool>> waiting_;  // for what is not written
  std::atomic<bool> ends_ = false;                // whoever writes a state gives it up
  std::unique_ptr<store::Journal> journal_;
  std::unique_ptr<CarriedRecords> carried_;
  std::unique_ptr<Worker> reads_, writes_;  // use the two before
};

// The state that the folder's records make, also while a server writes there. Errors as of
// Log::open; of one in which a state takes the place of records meanwhile, too.
Domain domain_in(const std::filesystem::path& folder);

// Bytes that a start reads of the journal in this folder.
int64_t bytes_to_read(const std::filesystem::path& folder);

// Error kInvalid: the state in this folder, by its `starts`, is of another model than `now`, or of
// other weights of it, where both are known; or was last gone on with by other arithmetic, unless
// that is accepted: results will differ from what they would have been.
void require_same(const std::filesystem::path& state, const std::vector<Opened>& starts,
                  const Opened& now, bool accept_other_arithmetic);

}  // namespace twinkle::server::core
