#include "twinkle/serving/log/log.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fault/fault.h"
#include "twinkle/base/file.h"
#include "twinkle/store/segment.h"

namespace twinkle::server::core {
namespace {

// Between looks at the disk's trouble, while a record is not written.
constexpr std::chrono::milliseconds kWatch{50};

int64_t record_bytes(std::string_view payload) {
  return static_cast<int64_t>(store::kHeaderBytes + payload.size());
}

template <size_t I = 0>
Record decoded_as(const store::Record& record) {
  if constexpr (I == std::variant_size_v<Record>) {
    fail(Code::kInvalid, "server: record ", record.sequence, " of the journal is of kind ",
         static_cast<int>(record.kind), ", which this program does not know");
  } else {
    using R = std::variant_alternative_t<I, Record>;
    if (record.kind != R::kKind) return decoded_as<I + 1>(record);
    ByteReader reader(record.payload, "server: the journal's bytes", store::kMaxPayloadBytes);
    R out;
    reader.take(out);
    return out;
  }
}

Record decoded(const store::Record& record, const std::filesystem::path& folder) {
  require(record.version == kFormat, Code::kInvalid, "server: record ", record.sequence,
          " of the journal in ", folder.string(), " is of format ", record.version,
          ", this program reads format ", kFormat,
          ": serve it by the version that wrote it, or name another --state");
  return decoded_as(record);
}

// Gives out the folder's state, if there is one, and what it carries; returns its sequence, or 0.
uint64_t visit_state(const std::filesystem::path& folder, const Log::Visit& visit) {
  if (!is_there(state_file(folder))) return 0;
  StateReader reader(folder);
  const uint64_t out = reader.state().sequence;
  visit(reader.state(), out, false);
  while (const auto record = reader.next()) visit(decoded(*record, folder), record->sequence, true);
  return out;
}

void require_next(bool ok, const std::filesystem::path& folder, uint64_t before) {
  require(ok, Code::kInvalid, "server: of the journal in ", folder.string(), " records behind ",
          before, " are missing; restore a backup");
}

}  // namespace

Domain domain_in(const std::filesystem::path& folder) {
  Domain out;
  if (!std::filesystem::is_directory(folder)) return out;
  store::require_none_lost(folder);
  const auto replay = [&](const Record& record, uint64_t sequence, bool is_carried) {
    out.replay(record, sequence, is_carried);
  };
  const uint64_t last = visit_state(folder, replay);
  uint64_t next = last + 1;
  const std::vector<store::Segment> segments = store::segments_in(folder);
  for (const store::Segment& segment : segments) {
    const bool is_first = &segment == &segments.front();
    require_next(is_first ? segment.first <= next : segment.first == next, folder, next - 1);
    const auto visit = [&](const store::Record& record) {
      if (record.sequence > last) replay(decoded(record, folder), record.sequence, false);
    };
    next = store::read_segment(segment, &segment == &segments.back(), visit).next;
  }
  require_next(next > last, folder, next - 1);
  return out;
}

int64_t Log::open(const std::filesystem::path& folder, const store::JournalOptions& options,
                  const Visit& visit) {
  folder_ = folder;
  auto journal = std::make_unique<store::Journal>(folder, options);
  int64_t num_records = 0;
  const uint64_t last = visit_state(folder, visit);
  num_records += last > 0;
  uint64_t next = last + 1;
  journal->open([&](const store::Record& record) {
    if (record.sequence <= last) return;
    require_next(record.sequence == next, folder, next - 1);
    ++next;
    bytes_ += record_bytes(record.payload);
    visit(decoded(record, folder), record.sequence, false);
    ++num_records;
  });
  require_next(journal->report().next == next, folder, journal->report().next - 1);
  journal->truncate_before(last + 1);  // a kill may have come before that
  sequence_ = written_ = next - 1;
  journal_ = std::move(journal);
  carried_ = std::make_unique<CarriedRecords>(folder);
  reads_ = std::make_unique<Worker>();
  writes_ = std::make_unique<Worker>();
  return num_records;
}

void Log::close() {
  ends_ = true;
  reads_.reset();
  writes_.reset();
  waiting_.clear();
  journal_.reset();
}

uint64_t Log::append(uint8_t kind, std::string payload) noexcept {
  bytes_ += record_bytes(payload);
  journal_->append(
      kind, kFormat, std::move(payload),
      [this](uint64_t sequence, const std::exception_ptr& error) {
        if (!error) loop_.post([this, sequence] { was_written(sequence); });
      },
      store::Refusal::kKept);
  watch();
  return ++sequence_;
}

void Log::was_written(uint64_t sequence) {
  written_ = std::max(written_, sequence);
  while (!waiting_.empty() && waiting_.begin()->first <= written_)
    waiting_.extract(waiting_.begin()).mapped().set(true);
}

// Who waits for a disk that refuses is answered: it may take long.
void Log::watch() {
  if (std::exchange(is_watched_, true)) return;
  loop_.after(kWatch, [this] {
    is_watched_ = false;
    if (!journal_ || written_ == sequence_) return;
    if (!trouble().empty())
      for (auto& [sequence, later] : std::exchange(waiting_, {}))
        later.fail(std::make_exception_ptr(
            Error(Code::kBusy, "server: the disk refuses what is to be journalled; come again")));
    watch();
  });
}

Task<> Log::written(uint64_t sequence) {
  if (!journal_ || sequence <= written_) co_return;
  const Later<bool> later;
  waiting_.emplace(sequence, later);
  co_await later;
}

Task<Record> Log::read(uint64_t sequence, std::string owner) {
  co_await written(sequence);
  require(reads_ != nullptr, Code::kBusy, "server: it ends; come again");
  const Later<Record> later;
  const auto kept = std::make_shared<std::optional<Record>>();
  reads_->run([this, kept, sequence] { kept->emplace(read_now(sequence)); }, loop_,
              [later, kept](const std::exception_ptr& error) {
                if (error)
                  later.fail(error);
                else
                  later.set(std::move(**kept));
              },
              owner);
  co_return co_await later;
}

Record Log::read_now(uint64_t sequence) {
  const store::StoredRecord r = [&] {
    try {
      try {
        return journal_->read(sequence);
      } catch (const Error& e) {
        if (e.code != Code::kNotFound || !is_there(state_file(folder_))) throw;
        return carried_->read(sequence);  // its segment has given way to a state, maybe now
      }
    } catch (const Error& e) {
      if (e.code == Code::kInvalid) throw Error(Code::kBusy, e.what());  // the system, for now
      throw;
    }
  }();
  return decoded({sequence, r.kind, r.version, r.payload}, folder_);
}

Task<> Log::replace_by(State state) {
  const Later<bool> later;
  const auto shared = std::make_shared<State>(std::move(state));
  writes_->run(
      [this, shared] {
        // A loss of power must not take what the state holds, nor what it carries.
        journal_->wait_synced(shared->sequence);
        write_state(folder_, *shared, [this] { return ends_.load(); });
        fault("before truncation");
        journal_->truncate_before(shared->sequence + 1);
      },
      loop_,
      [later](const std::exception_ptr& error) {
        if (error)
          later.fail(error);
        else
          later.set(true);
      });
  co_await later;
}

void Log::wait_synced(uint64_t sequence) const {
  if (journal_) journal_->wait_synced(sequence);
}

bool Log::is_synced(uint64_t sequence) const {
  try {
    wait_synced(sequence);
    return true;
  } catch (const Error&) {
    return false;
  }
}

int64_t bytes_to_read(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) return 0;
  int64_t out = 0;
  const auto add = [&out](const std::filesystem::path& file) {
    std::error_code gone;  // a server that runs has put a state in its place
    const auto bytes = std::filesystem::file_size(file, gone);
    if (!gone) out += static_cast<int64_t>(bytes);
  };
  add(state_file(folder));
  for (const store::Segment& segment : store::segments_in(folder)) add(segment.path);
  return out;
}

void require_same(const std::filesystem::path& state, const std::vector<Opened>& starts,
                  const Opened& now, bool accept_other_arithmetic) {
  for (const Opened& start : starts) {
    require(start.model == now.model, Code::kInvalid, "server: the state in ", state.string(),
            " is of the model ", start.model, ", and this is ", now.model, "; name another folder");
    require(now.weights.empty() || start.weights == now.weights, Code::kInvalid,
            "server: the state in ", state.string(), " is of the model in ", start.path,
            ", and the one in ", now.path,
            " has other weights with the same config: serve the weights that it is of, or name "
            "another --state");
  }
  require(starts.empty() || accept_other_arithmetic || starts.back().arithmetic == now.arithmetic,
          Code::kInvalid, "server: the state in ", state.string(), " was computed with ",
          starts.empty() ? "" : starts.back().arithmetic, ", and this is ", now.arithmetic,
          "; what is done again would get other bits. Accept that by --accept-other-arithmetic");
}

}  // namespace twinkle::server::core
