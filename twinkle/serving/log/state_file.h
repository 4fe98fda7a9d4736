// The file of a service's state, beside the segments of its journal: the record of a State, and
// behind it the records that it carries, as they are in the journal. It appears whole
// or not at all.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "twinkle/base/file.h"
#include "twinkle/serving/domain/commands.h"
#include "twinkle/store/segment.h"

namespace twinkle::server::core {

std::filesystem::path state_file(const std::filesystem::path& journal);

// Copies the records that the state carries from the file of the state before, and from the
// folder's segments, which another thread may be writing to behind them. Error kInvalid: one is not
// there, more than 4 GiB without them, the system refuses; kBusy: `ends` has said so, between two
// records, or two syncs, of which each has at most `synced_bytes` to write.
void write_state(
    const std::filesystem::path& journal, const State& state,
    const std::function<bool()>& ends = [] { return false; },
    size_t synced_bytes = size_t{64} << 20);

// The records that a folder's state carries, read one by one: where each is, is looked up once for
// each state. Used by one thread, while another replaces the state.
class CarriedRecords {
 public:
  explicit CarriedRecords(std::filesystem::path journal) : journal_(std::move(journal)) {}

  // Errors as of store::read_record; kInternal, too: the state does not carry it.
  store::StoredRecord read(uint64_t sequence);

 private:
  const std::filesystem::path journal_;
  uint64_t state_ = 0;                   // the sequence of the state that these are of; 0: of none
  std::map<uint64_t, int64_t> offsets_;  // by sequence
};

// Reads a file of write_state, a record at a time.
class StateReader {
 public:
  // Error kInvalid: it is not there, or is damaged.
  explicit StateReader(const std::filesystem::path& journal);

  const State& state() const { return state_; }
  // The next record; its bytes live until the next call. Nothing: that were all. Error kInvalid:
  // it is damaged.
  std::optional<store::Record> next();

 private:
  store::Record read();

  const File file_;
  int64_t at_ = 0;  // bytes
  std::string bytes_;
  State state_;
  std::set<uint64_t> left_;  // sequences
};

}  // namespace twinkle::server::core
