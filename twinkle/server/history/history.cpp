#include "twinkle/server/history/history.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <string_view>
#include <thread>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/store/segment.h"

namespace twinkle::server {
namespace {

constexpr std::chrono::milliseconds kAskAgain{1};

int64_t record_bytes(std::string_view payload) {
  return static_cast<int64_t>(store::kHeaderBytes + payload.size());
}

template <class R>
R read_as(const store::Record& record) {
  ByteReader reader(record.payload, "server: the journal's bytes", store::kMaxPayloadBytes);
  R out;
  reader.take(out);
  return out;
}

void require_format(const store::Record& record, const std::filesystem::path& folder) {
  require(record.version == kRecordFormat, Code::kInvalid, "server: record ", record.sequence,
          " of the journal in ", folder.string(), " is of format ", record.version,
          ", this program reads format ", kRecordFormat,
          ": serve it by the version that wrote it, or name another --state");
}

AnyRecord decoded(const store::Record& record, const std::filesystem::path& folder) {
  require_format(record, folder);
  switch (record.kind) {
    case Command::kKind:
      return read_as<Command>(record);
    case Ended::kKind:
      return read_as<Ended>(record);
    case Read::kKind:
      return read_as<Read>(record);
    default:
      fail(Code::kInvalid, "server: record ", record.sequence, " of the journal is of kind ",
           static_cast<int>(record.kind), ", which this program does not know");
  }
}

// What a replay knows beforehand.
bool tells_how(const store::Record& record) {
  return record.kind == Opened::kKind || record.kind == Dropped::kKind ||
         record.kind == Refused::kKind || record.kind == Snapshotted::kKind;
}

// Adds what a record says.
void add(History::Summary& out, const store::Record& record) {
  if (record.kind == Opened::kKind) out.starts.push_back(read_as<Opened>(record));
  if (record.kind == Snapshotted::kKind) {
    auto snapshot = read_as<Snapshotted>(record);
    out.snapshots.insert_or_assign(snapshot.run, std::move(snapshot));
  }
  if (record.kind == Dropped::kKind) out.dropped.insert(read_as<Dropped>(record).sequence);
  if (record.kind == Refused::kKind) {
    auto refused = read_as<Refused>(record);
    out.refused.insert_or_assign(refused.sequence, std::move(refused.why));
  }
  // The last and not the largest: the clock may have been set back.
  if (record.kind == Command::kKind) out.last_ms = read_as<Command>(record).time_ms;
  if (record.kind == Read::kKind) out.last_ms = read_as<Read>(record).time_ms;
}

}  // namespace

History::Summary summary_of(const std::filesystem::path& folder) {
  History::Summary out;
  if (!std::filesystem::is_directory(folder)) return out;
  store::require_none_lost(folder);
  uint64_t last = 0;
  if (is_there(state_file(folder))) {
    const StateReader reader(folder);
    const State& state = reader.state();
    last = *(out.state = state.sequence);
    out.starts = state.starts;
    out.last_ms = state.time_ms;
    for (const Snapshotted& s : state.snapshots) out.snapshots[s.run] = s;
  }
  uint64_t next = 1;
  const auto require_all = [&](bool ok) {
    require(ok, Code::kInvalid, "server: of the journal in ", folder.string(), " records behind ",
            std::max(last, next - 1), " are missing; restore a backup");
  };
  const std::vector<store::Segment> segments = store::segments_in(folder);
  for (const store::Segment& segment : segments) {
    const bool is_first = &segment == &segments.front();
    require_all(is_first ? segment.first <= last + 1 : segment.first == next);
    const auto visit = [&](const store::Record& record) {
      if (record.sequence <= last) return;
      require_format(record, folder);
      add(out, record);
    };
    next = store::read_segment(segment, &segment == &segments.back(), visit).next;
  }
  require_all(next > last);
  return out;
}

int64_t bytes_to_read(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) return 0;
  int64_t out = 0;
  const auto add = [&out](const std::filesystem::path& file) {
    std::error_code gone;  // which a server that runs has put a state in the place of
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

int64_t milliseconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t History::open(const std::filesystem::path& folder, const Replay& replay,
                      store::JournalOptions options) {
  const Summary summary = summary_of(folder);
  const auto begin = [&] {
    replaying_ = true;
    folder_ = folder;
    return replay.begin(summary);
  };
  while (!on_loop(replay.turn, begin)) std::this_thread::sleep_for(kAskAgain);
  int64_t num_records = 0;
  const auto do_again = [&](uint64_t sequence, const AnyRecord& record) {
    ++num_records;
    on_loop(replay.turn, [&] {
      sequence_ = sequence;
      replay.apply(sequence, record);
      return true;
    });
  };
  auto journal = std::make_unique<store::Journal>(folder, options);
  on_loop(replay.turn, [&] {
    journal_ = std::move(journal);
    carried_ = std::make_unique<CarriedRecords>(folder);
    reader_ = std::make_unique<Reader>(loop_, [this](uint64_t n) { return kept(n); });
    return true;
  });
  if (summary.state) {
    StateReader reader(folder);
    do_again(*summary.state, reader.state());
    while (const auto record = reader.next())
      if (record->kind != Ended::kKind)  // an answer, which stays there until it is asked for
        do_again(record->sequence, decoded(*record, folder));
  }
  const uint64_t in_state = summary.state.value_or(0);
  journal_->open([&](const store::Record& record) {
    if (record.sequence <= in_state) return;
    bytes_ += record_bytes(record.payload);
    if (tells_how(record) || summary.dropped.contains(record.sequence)) return;
    do_again(record.sequence, decoded(record, folder));
  });
  journal_->truncate_before(in_state + 1);  // a kill may have come before that
  on_loop(replay.turn, [&] {
    sequence_ = journal_->report().next - 1;
    return true;
  });
  const auto finish = [&] {
    replaying_ = !replay.finish();
    return !replaying_;
  };
  while (!on_loop(replay.turn, finish)) std::this_thread::sleep_for(kAskAgain);
  return num_records;
}

void History::read(uint64_t sequence, ReadFor what, const Reader::Then& then) {
  if (reader_) return reader_->read(sequence, what, then);
  then({}, std::make_exception_ptr(Error(Code::kBusy, "server: it ends; come again")));
}

ReadBack History::kept(uint64_t sequence) {
  const auto read = [&] {
    try {
      return journal_->read(sequence);
    } catch (const Error& e) {
      if (e.code != Code::kNotFound || !is_there(state_file(folder_))) throw;
      return carried_->read(sequence);  // its segment has given way to a state, maybe now
    }
  };
  const store::StoredRecord r = [&] {
    try {
      return read();
    } catch (const Error& e) {
      if (e.code == Code::kInvalid) throw Error(Code::kBusy, e.what());  // the system, for now
      throw;
    }
  }();
  AnyRecord record = decoded({sequence, r.kind, r.version, r.payload}, folder_);
  if (auto* command = std::get_if<Command>(&record)) return std::move(*command);
  auto* ended = std::get_if<Ended>(&record);
  require(ended, Code::kInvalid, "server: record ", sequence, " of the journal is of kind ",
          static_cast<int>(r.kind), ", which is not kept to be read back");
  return std::move(*ended);
}

void History::close(const std::function<void()>& also, const std::function<void()>& turn) {
  ends_ = true;
  on_loop(turn, [&] {
    also();
    reader_.reset();
    closed_ = true;
    if (state_writer_.joinable()) state_writer_.join();
    journal_.reset();
    return true;
  });
}

bool History::on_loop(const std::function<void()>& turn, const std::function<bool()>& run) {
  const auto task = std::make_shared<std::packaged_task<bool()>>(run);
  loop_.post([task] { (*task)(); });
  turn();
  return task->get_future().get();
}

void History::append(uint8_t kind, std::string payload, store::Refusal refusal, Then then) {
  auto shared = std::make_shared<Then>(std::move(then));  // a const one would be copied below
  const int64_t bytes = record_bytes(payload);
  // The journal's thread gives `then` away: what it holds ends on the service's thread.
  auto told = [this, shared, bytes](uint64_t sequence, std::exception_ptr error) mutable {
    loop_.post([this, shared = std::move(shared), bytes, sequence, error] {
      if (!error) sequence_ = sequence;
      if (journal_) tell_trouble(error);
      (*shared)(sequence, error);
      if (error) return;
      bytes_ += bytes;
      on_done_();
    });
  };
  try {
    require(journal_ != nullptr, Code::kBusy, "server: it ends; come again");
    journal_->append(kind, kRecordFormat, std::move(payload), told, refusal);
  } catch (const Error&) {
    told(0, std::current_exception());
  }
}

void History::tell_trouble(const std::exception_ptr& error) {
  if (is_refused_ == (error != nullptr)) return;
  is_refused_ = error != nullptr;
  std::string why;
  try {
    if (error) std::rethrow_exception(error);
  } catch (const std::exception& e) {
    why = e.what();
  }
  on_trouble_(why);
}

bool History::is_synced(uint64_t sequence) {
  try {
    journal_->wait_synced(sequence);
    return true;
  } catch (const Error&) {
    return false;
  }
}

void History::replace_by(State state, std::function<void(std::exception_ptr error)> then) {
  if (state_writer_.joinable()) state_writer_.join();  // it has told its end
  state_writer_ = std::thread([this, state = std::move(state), then = std::move(then),
                               last = std::max(sequence_, state.sequence)] {
    std::exception_ptr error;
    try {
      // A loss of power must not take what comes before the records that follow, nor the records of
      // snapshots that the state needs, which are behind it.
      journal_->wait_synced(last);
      write_state(folder_, state, [this] { return ends_.load(); });
      journal_->truncate_before(state.sequence + 1);
    } catch (...) {
      error = std::current_exception();
    }
    loop_.post([error, then] { then(error); });
  });
}

}  // namespace twinkle::server
