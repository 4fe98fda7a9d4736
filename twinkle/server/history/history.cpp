#include "twinkle/server/history/history.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/store/segment.h"

namespace twinkle::server {
namespace {

constexpr uint16_t kVersion = 1;
constexpr std::chrono::milliseconds kAskAgain{1};

template <class R>
R read_as(const store::Record& record) {
  ByteReader reader(record.payload, "server: the journal's bytes", store::kMaxPayloadBytes);
  R out;
  reader.take(out);
  return out;
}

AnyRecord decoded(const store::Record& record) {
  require(record.version == kVersion, Code::kInvalid, "server: record ", record.sequence,
          " of the journal is of version ", record.version, ", this program reads ", kVersion);
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

}  // namespace

History::Summary summary_of(const std::filesystem::path& folder) {
  History::Summary out;
  if (!std::filesystem::is_directory(folder)) return out;
  const std::vector<store::Segment> segments = store::segments_in(folder);
  for (const store::Segment& segment : segments)
    store::read_segment(segment, &segment == &segments.back(), [&](const store::Record& record) {
      if (record.kind == Opened::kKind) out.starts.push_back(read_as<Opened>(record));
      if (record.kind == Snapshotted::kKind) {
        auto snapshot = read_as<Snapshotted>(record);
        out.snapshots.insert_or_assign(snapshot.run, std::move(snapshot));
      }
      if (record.kind == Dropped::kKind) out.dropped.insert(read_as<Dropped>(record).sequence);
      if (record.kind == Command::kKind)
        out.last_ms = std::max(out.last_ms, read_as<Command>(record).time_ms);
      if (record.kind == Read::kKind)
        out.last_ms = std::max(out.last_ms, read_as<Read>(record).time_ms);
    });
  return out;
}

int64_t milliseconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void History::open(const std::filesystem::path& folder, const Replay& replay,
                   store::JournalOptions options) {
  const Summary summary = summary_of(folder);
  const auto begin = [&] {
    replaying_ = true;
    return replay.begin(summary);
  };
  while (!on_loop(replay.turn, begin)) std::this_thread::sleep_for(kAskAgain);
  const auto apply = [&](const store::Record& record) {
    if (record.kind == Opened::kKind || record.kind == Dropped::kKind ||
        record.kind == Snapshotted::kKind || summary.dropped.contains(record.sequence))
      return;
    const AnyRecord known = decoded(record);
    while (!on_loop(replay.turn, [&] { return replay.apply(record.sequence, known); }))
      std::this_thread::sleep_for(kAskAgain);
  };
  auto journal = std::make_unique<store::Journal>(folder, options);
  on_loop(replay.turn, [&] {
    journal_ = std::move(journal);
    reader_ = std::make_unique<Reader>(loop_, [this](uint64_t sequence) {
      const store::StoredRecord r = journal_->read(sequence);
      return std::get<Command>(decoded({sequence, r.kind, r.version, r.payload}));
    });
    return true;
  });
  journal_->open(apply);
  const auto finish = [&] {
    replaying_ = !replay.finish();
    return !replaying_;
  };
  while (!on_loop(replay.turn, finish)) std::this_thread::sleep_for(kAskAgain);
}

void History::close(const std::function<void()>& also, const std::function<void()>& turn) {
  on_loop(turn, [&] {
    also();
    reader_.reset();
    journal_.reset();
    return closed_ = true;
  });
}

bool History::on_loop(const std::function<void()>& turn, const std::function<bool()>& run) {
  const auto task = std::make_shared<std::packaged_task<bool()>>(run);
  loop_.post([task] { (*task)(); });
  turn();
  return task->get_future().get();
}

void History::append(uint8_t kind, std::string payload, Then then) {
  const auto shared = std::make_shared<Then>(std::move(then));
  const auto told = [this, shared](uint64_t sequence, std::exception_ptr error) {
    loop_.post([shared, sequence, error] { (*shared)(sequence, error); });
  };
  try {
    require(journal_ != nullptr, Code::kBusy, "server: it ends; come again");
    journal_->append(kind, kVersion, std::move(payload), told);
  } catch (const Error&) {
    told(0, std::current_exception());
  }
}

}  // namespace twinkle::server
