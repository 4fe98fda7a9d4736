#include "twinkle/store/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <new>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/fault/fault.h"
#include "twinkle/base/file.h"
#include "twinkle/io/atomic.h"
#include "twinkle/io/folder/private.h"
#include "twinkle/store/folder_lock.h"
#include "twinkle/store/system.h"

namespace twinkle::store {

namespace fs = std::filesystem;

namespace {

constexpr size_t kMaxRecordsAtOnce = 64;
constexpr int64_t kMarkBytes = int64_t{64} << 10;  // between places that are kept in memory
constexpr size_t kProbeBytes = size_t{64} << 10;   // that must fit before appends are taken again

// Opens a new segment, whose name survives a loss of power; -1, with errno, where that fails.
int make_segment(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || sync_folder(path.parent_path())) return fd;
  const int error = errno;
  ::close(fd);
  ::unlink(path.c_str());
  errno = error;
  return -1;
}

// The folder, which is there from here on.
fs::path made(const fs::path& folder) {
  fs::path out = fs::absolute(folder);
  std::error_code error;
  const bool is_new = make_private_folders(out, error);
  require(!error, Code::kInvalid, "store: cannot make the folder ", out.string(), ": ",
          error.message());
  if (is_new) require_system(sync_folder(out.parent_path()), "sync", out.parent_path());
  return out;
}

std::chrono::nanoseconds seconds(double value) {
  return std::chrono::nanoseconds(static_cast<int64_t>(value * 1e9));
}

}  // namespace

Journal::Journal(const fs::path& folder, JournalOptions options)
    : folder_(made(folder)), options_(options), lock_(lock_folder(folder_)) {}

Journal::~Journal() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
  }
  ready_.notify_all();
  if (writer_.joinable()) writer_.join();
}

const Journal::Report& Journal::open(const Visitor& replay) {
  std::vector<Segment> segments = segments_in(folder_);
  require_none_lost(folder_);
  {
    const Lock lock(mutex_);
    segments_ = segments;
  }
  End end;
  if (!segments.empty()) end.next = segments.front().first;
  for (const Segment& segment : segments) {
    require(segment.first == end.next, Code::kInvalid, "store: ", segment.path.string(),
            " begins with record ", segment.first, ", the segment before it ends before record ",
            end.next, ": a segment is missing; restore a backup");
    int64_t offset = 0;
    end = read_segment(segment, &segment == &segments.back(), [&](const Record& record) {
      {
        const Lock lock(mutex_);
        mark(record.sequence, offset);
      }
      offset += static_cast<int64_t>(kHeaderBytes + record.payload.size());
      replay(record);
    });
  }
  if (segments.empty()) {
    segments.push_back({1, segment_path(folder_, 1)});
    file_.reset(make_segment(segments[0].path));
  } else {
    file_.reset(::open(segments.back().path.c_str(), O_RDWR | O_CLOEXEC));
  }
  path_ = segments.back().path;
  require_system(file_.get() >= 0, "open", path_);
  report_ = {.next = end.next, .cut_bytes = end.torn, .cut_file = end.torn > 0 ? path_ : ""};
  // Bytes of a killed process may never have been synced.
  const bool cut = end.torn == 0 || ::ftruncate(file_.get(), end.bytes) == 0;
  require_system(cut && ::fdatasync(file_.get()) == 0, "cut or sync", path_);
  end_ = synced_end_ = end.bytes;
  next_ = synced_next_ = end.next;
  {
    const Lock lock(mutex_);
    segments_ = std::move(segments);
    num_synced_ = next_ - 1;
  }
  writer_ = std::thread([this] { run(); });
  return report_;
}

void Journal::mark(uint64_t sequence, int64_t offset) {
  if (offset == 0 || marks_.empty() || offset >= std::prev(marks_.end())->second + kMarkBytes)
    marks_[sequence] = offset;
}

StoredRecord Journal::read(uint64_t sequence) const {
  fs::path path;
  int64_t offset = 0;
  {
    const Lock lock(mutex_);
    const auto segment = std::ranges::upper_bound(segments_, sequence, {}, &Segment::first);
    const auto after = marks_.upper_bound(sequence);
    require(segment != segments_.begin() && after != marks_.begin(), Code::kNotFound,
            "store: record ", sequence, " is not in ", folder_.string());
    path = std::prev(segment)->path;
    offset = std::prev(after)->second;
  }
  return read_record(File(path, "store"), offset, sequence);
}

void Journal::append(uint8_t kind, uint16_t version, std::string payload, OnWritten on_written,
                     Refusal refusal) {
  require(payload.size() <= kMaxPayloadBytes, Code::kInvalid, "store: a record has ",
          payload.size(), " bytes, the limit is ", kMaxPayloadBytes);
  {
    const Lock lock(mutex_);
    if (!trouble_.empty() && refusal == Refusal::kTold) throw Error(Code::kBusy, trouble_);
    queue_.push_back({kind, version, std::move(payload), std::move(on_written), refusal});
  }
  ready_.notify_one();
}

uint64_t Journal::last_segment() const {
  const Lock lock(mutex_);
  return segments_.back().first;
}

void Journal::wait_synced(uint64_t sequence) {
  Lock lock(mutex_);
  while (num_synced_ < sequence) {
    if (!trouble_.empty()) throw Error(Code::kBusy, trouble_);
    sync_wanted_ = true;
    ready_.notify_one();
    lock.wait(synced_);
  }
}

void Journal::truncate_before(uint64_t sequence) {
  // The oldest first, so that no gap is left whenever this ends. Appends must not wait for the
  // disk.
  const auto oldest = [&]() -> std::optional<fs::path> {
    const Lock lock(mutex_);
    if (segments_.size() < 2 || segments_[1].first > sequence) return std::nullopt;
    return segments_.front().path;
  };
  while (const auto path = oldest()) {
    fault("before truncation");
    require_system(::unlink(path->c_str()) == 0 || errno == ENOENT, "remove", *path);
    fault("after truncation");
    const Lock lock(mutex_);
    segments_.erase(segments_.begin());
    marks_.erase(marks_.begin(), marks_.lower_bound(segments_.front().first));
  }
  require_system(sync_folder(folder_), "sync", folder_);
}

std::string Journal::trouble() const {
  const Lock lock(mutex_);
  return trouble_;
}

void Journal::run() {
  std::vector<Pending> batch;
  bool stopping = false;
  while (!stopping || (!failing_ && !kept_.empty())) {
    batch.clear();
    wait_for_work(batch, stopping);
    std::span<Pending> rest = batch;
    while (!rest.empty() && !failing_) {
      rest = rest.subspan(write_some(rest));
      if (is_sync_due()) sync();
    }
    if (!rest.empty())
      refuse(refusal_of("write to", 0), rest);  // appended before trouble() said why
    if (failing_ && Clock::now() >= retry_at_) retry();
    // Whoever waits for the disk waits for no timer: what comes while it is busy is the next group.
    if (is_sync_due() || !unsynced_.empty() || (stopping && !failing_)) sync();
  }
  for (Pending& p : kept_)
    p.on_written(0, std::make_exception_ptr(Error(Code::kBusy, "store: the journal was closed")));
}

bool Journal::is_sync_due() const {
  return !failing_ && end_ != synced_end_ && (must_sync_ || Clock::now() >= sync_at_);
}

// Until there is something to write, to sync, to try again, or the end.
void Journal::wait_for_work(std::vector<Pending>& batch, bool& stopping) {
  if (!failing_) batch.swap(kept_);
  Lock lock(mutex_);
  while (queue_.empty() && batch.empty() && !stopping_ && !sync_wanted_) {
    if (!failing_ && end_ == synced_end_)
      lock.wait(ready_);
    else if (!lock.wait_until(ready_, failing_ ? retry_at_ : sync_at_))
      break;
  }
  std::ranges::move(queue_, std::back_inserter(batch));
  queue_.clear();
  stopping = stopping_;
  must_sync_ = std::exchange(sync_wanted_, false);
}

// Ends the last segment and begins another. False, with errno: the system refuses.
bool Journal::roll() {
  if (!sync()) return false;
  const fs::path path = segment_path(folder_, next_);
  const int fd = make_segment(path);
  if (fd < 0) {
    must_roll_ = true;
    return false;
  }
  must_roll_ = must_begin_ = false;
  file_.reset(fd);
  path_ = path;
  end_ = synced_end_ = 0;
  const Lock lock(mutex_);
  segments_.push_back({next_, path});
  return true;
}

// Writes the first of these, as many as one call takes, and returns how many it has dealt with.
size_t Journal::write_some(std::span<Pending> records) {
  const auto size_of = [](const Pending& p) {
    return static_cast<int64_t>(kHeaderBytes + p.payload.size());
  };
  if (!is_in_place()) {
    refuse(
        folder_.string() +
            " was moved, or another folder is in its place, while the server runs; move it back, "
            "or end the server",
        records);
    return records.size();
  }
  if (end_ == 0) must_begin_ = false;
  const bool is_full = end_ + size_of(records[0]) > options_.segment_bytes;
  if (end_ > 0 && (is_full || must_begin_) && !roll()) {
    refuse(refusal_of("make a segment after", errno), records);
    return records.size();
  }
  std::array<Header, kMaxRecordsAtOnce> headers;
  std::array<iovec, 2 * kMaxRecordsAtOnce> parts;
  size_t count = 0;
  int64_t end = end_;
  while (count < std::min(records.size(), kMaxRecordsAtOnce) &&
         (count == 0 || end + size_of(records[count]) <= options_.segment_bytes)) {
    Pending& p = records[count];
    headers[count] = header_of({next_ + count, p.kind, p.version, p.payload});
    parts[2 * count] = {headers[count].data(), kHeaderBytes};
    parts[2 * count + 1] = {p.payload.data(), p.payload.size()};
    end += size_of(p);
    ++count;
  }
  fault("before journal write");
  if (!write_all(file_.get(), std::span(parts).first(2 * count), end_)) {
    refuse(refusal_of("write to", errno), records);
    return records.size();
  }
  fault("after journal write");
  if (end_ == synced_end_) sync_at_ = Clock::now() + seconds(options_.sync_seconds);
  {
    const Lock lock(mutex_);
    for (size_t i = 0; i < count; ++i) {
      mark(next_ + i, end_);
      end_ += size_of(records[i]);
    }
  }
  for (Pending& p : records.first(count)) {
    if (options_.durability == Durability::kProcess)
      p.on_written(next_, nullptr);
    else if (p.refusal == Refusal::kKept)
      unsynced_.push_back(std::move(p));
    else
      unsynced_.push_back({.on_written = std::move(p.on_written)});
    ++next_;
  }
  return count;
}

// After a refusal a second fdatasync() may succeed although the data are gone: what waited for the
// first is cut off and told so.
bool Journal::sync() {
  const bool ok = end_ == synced_end_ || ::fdatasync(file_.get()) == 0;
  const int error = errno;
  std::vector<Pending> waiting;
  waiting.swap(unsynced_);
  if (ok) {
    synced_end_ = end_;
    for (Pending& p : waiting) p.on_written(synced_next_++, nullptr);
    synced_next_ = next_;
    tell_synced();
    return true;
  }
  if (options_.durability == Durability::kDisk) {
    end_ = synced_end_;
    next_ = synced_next_;
    const Lock lock(mutex_);
    marks_.erase(marks_.lower_bound(next_), marks_.end());
  }
  refuse(refusal_of("sync", error), waiting);
  errno = error;
  return false;
}

// Writes to a folder that was moved would go on where nobody looks for them.
bool Journal::is_in_place() const {
  struct stat written = {}, there = {};
  return ::fstat(file_.get(), &written) == 0 && ::stat(path_.c_str(), &there) == 0 &&
         written.st_dev == there.st_dev && written.st_ino == there.st_ino;
}

std::string Journal::refusal_of(const char* action, int error) const {
  return std::string("cannot ") + action + " " + path_.string() + ": " + std::strerror(error) +
         "; free space there or mend the disk, it is tried again";
}

// Cuts off what is half written, and tells these why, or keeps them. What was written before is
// synced first, so that its callbacks come first.
void Journal::refuse(const std::string& why, std::span<Pending> records) {
  if (!unsynced_.empty()) sync();
  // Where this fails, retry() does it; until then nothing is written after it.
  std::ignore = ::ftruncate(file_.get(), end_);
  std::exception_ptr refusal;
  {
    const Lock lock(mutex_);
    if (trouble_.empty()) trouble_ = "store: " + why;
    refusal = std::make_exception_ptr(Error(Code::kBusy, trouble_));
  }
  synced_.notify_all();
  for (Pending& p : records) {
    if (p.refusal == Refusal::kKept)
      kept_.push_back(std::move(p));
    else
      p.on_written(0, refusal);
  }
  // At once for the first time: there may be room for less than what was refused.
  if (!failing_) retry_at_ = Clock::now() + seconds(kept_.empty() ? 0 : options_.retry_seconds);
  failing_ = true;
}

// Bytes that were written and acknowledged, and are in no sync: of pages whose sync has failed the
// system says that they are on the disk, and the next sync would leave them out. Some systems drop
// such pages: what is read then is what the disk had before, and no record.
bool Journal::write_again() {
  uint64_t sequence = synced_next_;
  std::string bytes;
  for (int64_t at = synced_end_; at < end_; at += std::ssize(bytes), ++sequence) {
    Header header{};
    if (!read_all(file_.get(), header, at)) return false;
    bytes.resize(std::min(header.size() + payload_bytes(header), static_cast<size_t>(end_ - at)));
    if (!read_all(file_.get(), bytes, at)) return false;
    const auto record = parse_record(bytes);
    if (!record || record->sequence != sequence) {
      lose(sequence);
      return false;
    }
    iovec all{bytes.data(), bytes.size()};
    if (!write_all(file_.get(), {&all, 1}, at)) return false;
  }
  return true;
}

// It goes on refusing: what would be appended behind a hole could not be read back. The next
// process would take the hole for a torn tail: it is told, if the disk takes that much.
void Journal::lose(uint64_t sequence) {
  const std::string why = "store: " + path_.string() + " has lost record " +
                          std::to_string(sequence) +
                          ", which was acknowledged, when the disk failed to sync it; nothing more "
                          "is taken: mend the disk and restore a backup";
  is_lost_ = true;
  {
    const Lock lock(mutex_);
    trouble_ = why;
  }
  tell_lost(why);
}

void Journal::tell_lost(const std::string& why) const {
  try {
    if (!is_there(lost_file(folder_))) write_file_atomically(lost_file(folder_), why);
  } catch (const Error&) {
    // It is tried again with the next retry.
  }
}

// Takes appends again if the disk takes some bytes after the last record. Zeros are no record: a
// process that is killed here leaves a torn tail.
void Journal::retry() {
  if (is_lost_) {
    tell_lost(trouble());
    retry_at_ = Clock::now() + seconds(options_.retry_seconds);
    return;
  }
  std::string zeros(kProbeBytes, '\0');
  iovec probe{zeros.data(), zeros.size()};
  const auto cut = [&] { return ::ftruncate(file_.get(), end_) == 0; };
  const auto again = [&] {
    try {
      return write_again();
    } catch (const std::bad_alloc&) {
      return false;  // for a record, which may have hundreds of MiB
    }
  };
  const bool fits = cut() && again() && write_all(file_.get(), {&probe, 1}, end_);
  if (!cut() || !fits || !is_in_place() || ::fdatasync(file_.get()) != 0 ||
      (must_roll_ && !roll())) {
    retry_at_ = Clock::now() + seconds(options_.retry_seconds);
    return;
  }
  synced_end_ = end_;
  synced_next_ = next_;
  failing_ = false;
  {
    const Lock lock(mutex_);
    trouble_.clear();
  }
  tell_synced();
}

void Journal::tell_synced() {
  {
    const Lock lock(mutex_);
    num_synced_ = synced_next_ - 1;
  }
  synced_.notify_all();
}

}  // namespace twinkle::store
