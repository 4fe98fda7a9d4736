#include "twinkle/serving/log/state_file.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fault/fault.h"
#include "twinkle/base/fields/codec.h"
#include "twinkle/io/atomic.h"
#include "twinkle/serving/domain/domain.h"

namespace twinkle::server::core {

namespace fs = std::filesystem;

namespace {

constexpr uint16_t kStateVersion = 4;  // the only one that is read

// Records one after another, as long as the server does not end.
class StateWriter {
 public:
  StateWriter(const fs::path& journal, const std::function<bool()>& ends, size_t synced_bytes)
      : out_(state_file(journal)), ends_(ends), synced_bytes_(synced_bytes) {}

  void write(const store::Record& record) {
    const store::Header header = store::header_of(record);
    write({header.data(), header.size()});
    write(record.payload);
  }
  void commit() {
    fault("before state rename");
    require_goes_on();
    out_.commit();
    fault("after state rename");
  }
  void require_goes_on() const {
    require(!ends_(), Code::kBusy, "server: it ends; the state is written when it has grown again");
  }

 private:
  void write(std::string_view bytes) {
    for (std::string_view rest = bytes; !rest.empty();) {
      require_goes_on();
      const std::string_view piece = rest.substr(0, synced_bytes_ - unsynced_);
      out_.write(piece);
      rest.remove_prefix(piece.size());
      unsynced_ += piece.size();
      if (unsynced_ < synced_bytes_) continue;
      fault("before a state's sync");
      out_.sync();
      unsynced_ = 0;
    }
  }

  AtomicFile out_;
  const std::function<bool()>& ends_;
  const size_t synced_bytes_;  // no more is to be synced at once
  size_t unsynced_ = 0;        // bytes
};

}  // namespace

fs::path state_file(const fs::path& journal) { return journal / "state"; }

void write_state(const fs::path& journal, const State& state, const std::function<bool()>& ends,
                 size_t synced_bytes) {
  ByteWriter writer;
  writer.put(state);
  const std::string payload = writer.take();
  require(payload.size() <= store::kMaxPayloadBytes, Code::kInvalid, "server: the state takes ",
          payload.size(), " bytes, the limit is ", store::kMaxPayloadBytes);
  StateWriter out(journal, ends, synced_bytes);
  out.write({state.sequence, State::kKind, kStateVersion, payload});
  std::set<uint64_t> left = Domain::carried(state);
  if (is_there(state_file(journal))) {
    StateReader before(journal);
    while (const auto record = before.next()) {
      out.require_goes_on();
      if (left.erase(record->sequence) > 0) out.write(*record);
    }
  }
  const std::vector<store::Segment> segments = store::segments_in(journal);
  for (size_t i = 0; i < segments.size() && !left.empty(); ++i) {
    const bool is_last = i + 1 == segments.size();
    if (!is_last && segments[i + 1].first <= *left.begin()) continue;
    store::read_segment(segments[i], is_last, [&](const store::Record& record) {
      out.require_goes_on();
      if (left.erase(record.sequence) > 0) out.write(record);
    });
  }
  require(left.empty(), Code::kInvalid, "server: record ", left.empty() ? 0 : *left.begin(),
          " is not in ", journal.string(), ", and is needed");
  out.commit();
}

store::StoredRecord CarriedRecords::read(uint64_t sequence) {
  const File file(state_file(journal_), "server");
  store::Header header{};
  file.read_at(0, std::as_writable_bytes(std::span(header)));
  const uint64_t state = store::sequence_of(header);
  if (state != state_) {
    // They begin behind the state, which may have the sequence of one of them.
    const auto behind = static_cast<int64_t>(header.size() + store::payload_bytes(header));
    offsets_ = store::offsets_in(file, behind);
    state_ = state;
  }
  const auto found = offsets_.find(sequence);
  require(found != offsets_.end(), Code::kInternal, "server: record ", sequence, " is not in ",
          file.path().string(), ", and is needed; restore a backup");
  return store::read_record(file, found->second, sequence);
}

StateReader::StateReader(const fs::path& journal) : file_(state_file(journal), "server") {
  const store::Record record = read();
  require(record.kind == State::kKind, Code::kInvalid, "server: ", file_.path().string(),
          " begins with a record of kind ", static_cast<int>(record.kind), ", a state is of kind ",
          static_cast<int>(State::kKind), "; restore a backup");
  require(record.version == kStateVersion, Code::kInvalid, "server: ", file_.path().string(),
          " is of format ", record.version, ", this program reads format ", kStateVersion,
          ": serve it by the version that wrote it, or name another --state");
  ByteReader reader(record.payload, "server: the state's bytes", 2 * store::kMaxPayloadBytes);
  reader.take(state_);
  left_ = Domain::carried(state_);
}

std::optional<store::Record> StateReader::next() {
  require(!left_.empty() || at_ == file_.size(), Code::kInvalid, "server: ", file_.path().string(),
          " has ", file_.size() - at_, " bytes too many; restore a backup");
  if (left_.empty()) return std::nullopt;
  const store::Record record = read();
  require(left_.erase(record.sequence) > 0, Code::kInvalid, "server: ", file_.path().string(),
          " holds record ", record.sequence, ", which its state does not name; restore a backup");
  return record;
}

store::Record StateReader::read() {
  const auto bytes_at = [&](int64_t offset, size_t size) {
    require(static_cast<int64_t>(size) <= file_.size() - offset, Code::kInvalid,
            "server: ", file_.path().string(), " ends too early; restore a backup");
    const size_t had = bytes_.size();
    bytes_.resize(had + size);
    file_.read_at(offset, std::as_writable_bytes(std::span(bytes_).subspan(had)));
  };
  bytes_.clear();
  bytes_at(at_, store::kHeaderBytes);
  store::Header header{};
  std::ranges::copy(bytes_, header.begin());
  bytes_at(at_ + std::ssize(bytes_), store::payload_bytes(header));
  const auto record = store::parse_record(bytes_);
  require(record.has_value(), Code::kInvalid, "server: ", file_.path().string(),
          " is damaged at byte ", at_, "; restore a backup");
  at_ += std::ssize(bytes_);
  return *record;
}

}  // namespace twinkle::server::core
