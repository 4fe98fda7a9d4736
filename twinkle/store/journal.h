// The journal: what was accepted, in order, on disk before anybody is told. One process at a time
// has a folder of segments (segment.h) open. One thread of the journal's own writes; everything
// here may be called from any thread. Knows nothing of what records mean. docs/journal.md has the
// promises.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "twinkle/base/fields/options.h"
#include "twinkle/base/file.h"
#include "twinkle/base/guarded.h"
#include "twinkle/store/segment.h"

namespace twinkle::store {

// When on_written is called: after write(), which a killed process survives, or after fdatasync(),
// which a loss of power does.
enum class Durability { kProcess, kDisk };

// The fate of a record that the disk refuses: its caller is told, or it is kept, and written
// when the disk takes it, before all that is appended behind it.
enum class Refusal { kTold, kKept };

struct JournalOptions {
  Durability durability = Durability::kProcess;
  int64_t segment_bytes = int64_t{64} << 20;
  double sync_seconds = 0.005;
  double retry_seconds = 1;

  static constexpr auto fields() {
    using O = JournalOptions;
    return std::tuple{
        option("durability", &O::durability, one_of("process", "disk"),
               "what an acknowledged request outlives: a kill of the process, or also a loss of "
               "power, for which each write waits until the disk has it"),
        option("segment_bytes", &O::segment_bytes, between(1, kMostBytes),
               "bytes of a file of the journal; a larger record has one of its own"),
        option(
            "sync_seconds", &O::sync_seconds, between(0, 60),
            "seconds that what is written waits at most for its sync to the disk; with durability "
            "disk it is synced at once"),
        option("retry_seconds", &O::retry_seconds, between(0.001, 3600),
               "seconds between attempts on a disk that refuses")};
  }
};

class Journal {
 public:
  using Visitor = std::function<void(const Record&)>;
  // The record's sequence and null, or 0 and the Error, of code kBusy. Called in the order of the
  // records by the writing thread, which waits for it; must not throw.
  using OnWritten = std::function<void(uint64_t sequence, std::exception_ptr error)>;

  // The findings of opening.
  struct Report {
    uint64_t next = 1;      // the sequence that the next record gets
    int64_t cut_bytes = 0;  // bytes of a torn tail; 0: none
    std::filesystem::path cut_file;
  };

  // Makes the folder if there is none. Error kConflict: another process has it open; kInvalid: the
  // system refuses.
  explicit Journal(const std::filesystem::path& folder, JournalOptions options = {});
  ~Journal();  // writes and syncs what was appended
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Before anything is appended, once: gives every record to `replay` in order, and cuts a torn
  // tail. Error kInvalid: a damaged record, with file and byte, a missing segment, records that an
  // earlier process knew to be lost, or the system refuses.
  const Report& open(const Visitor& replay);
  const Report& report() const { return report_; }

  // Error kBusy: the disk refuses (trouble()), but for kKept, which is then refused by the
  // destructor alone; kInvalid: a payload of 4 GiB.
  void append(uint8_t kind, uint16_t version, std::string payload, OnWritten on_written,
              Refusal refusal = Refusal::kTold);

  // One that was written, or given to `replay`. Error kNotFound: it was removed; kInternal: it is
  // damaged, or none has this sequence; kInvalid: the system refuses.
  StoredRecord read(uint64_t sequence) const;

  // The next record begins a segment, so that those before it can go.
  void begin_segment() { must_begin_ = true; }
  // The first sequence of the segment that is written to.
  uint64_t last_segment() const;
  // Has the record of this sequence, which is written, synced now, and waits for that. Error kBusy:
  // the disk refuses.
  void wait_synced(uint64_t sequence);
  // Removes the segments whose records all come before `sequence`; by one thread at a time. Error
  // kInvalid: the system refuses.
  void truncate_before(uint64_t sequence);

  // False while the disk refuses; trouble() says why, and is empty otherwise.
  bool healthy() const { return trouble().empty(); }
  std::string trouble() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Pending {
    uint8_t kind = 0;
    uint16_t version = 0;
    std::string payload;
    OnWritten on_written;
    Refusal refusal = Refusal::kTold;
  };

  void mark(uint64_t sequence, int64_t offset) REQUIRES(mutex_);
  void run();
  void wait_for_work(std::vector<Pending>& batch, bool& stopping);
  bool is_sync_due() const;
  bool roll();
  size_t write_some(std::span<Pending> records);
  bool sync();
  bool is_in_place() const;
  std::string refusal_of(const char* action, int error) const;
  void refuse(const std::string& why, std::span<Pending> records);
  bool write_again();
  void lose(uint64_t sequence);
  void tell_lost(const std::string& why) const;
  void retry();
  void tell_synced();

  const std::filesystem::path folder_;
  const JournalOptions options_;
  Report report_;
  FileHandle lock_;

  // The writing thread's alone: the last segment.
  FileHandle file_;
  std::filesystem::path path_;
  int64_t end_ = 0, synced_end_ = 0;     // bytes
  uint64_t next_ = 1, synced_next_ = 1;  // sequences
  std::vector<Pending> unsynced_;        // kDisk: written, not yet synced
  std::vector<Pending> kept_;            // refused, to be written before all others
  bool failing_ = false, must_roll_ = false, must_sync_ = false;
  bool is_lost_ = false;  // an acknowledged record: it fails until it ends
  std::atomic<bool> must_begin_ = false;
  Clock::time_point sync_at_, retry_at_;

  mutable Mutex mutex_;
  std::condition_variable ready_;
  std::condition_variable synced_;  // or refused
  bool sync_wanted_ GUARDED_BY(mutex_) = false;
  uint64_t num_synced_ GUARDED_BY(mutex_) = 0;  // the last sequence that is synced
  std::vector<Pending> queue_ GUARDED_BY(mutex_);
  std::vector<Segment> segments_ GUARDED_BY(mutex_);
  // Bytes at which some records begin in their segments: of the first, and of one each kMarkBytes.
  std::map<uint64_t, int64_t> marks_ GUARDED_BY(mutex_);
  std::string trouble_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread writer_;
};

}  // namespace twinkle::store
