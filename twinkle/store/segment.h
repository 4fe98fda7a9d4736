// The journal's files: records one after another, little-endian, each u32 length (of what follows
// the CRC), u32 CRC-32C (of all but itself), u64 sequence, u8 kind, u16 version, payload. A file is
// named after the first sequence that it holds. Knows nothing of writing to them.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/file.h"

namespace twinkle::store {

// Sequences count from 1 without gaps. What kinds and versions mean is the writer's business.
struct Record {
  uint64_t sequence = 0;
  uint8_t kind = 0;
  uint16_t version = 0;
  std::string_view payload;
};

// One that was read back.
struct StoredRecord {
  uint8_t kind = 0;
  uint16_t version = 0;
  std::string payload;
};

constexpr size_t kHeaderBytes = 19;
constexpr size_t kMaxPayloadBytes = 0xffffffffU - 11;
using Header = std::array<char, kHeaderBytes>;

Header header_of(const Record& record);
// That follow this header, if it is one.
uint64_t payload_bytes(const Header& header);
uint64_t sequence_of(const Header& header);
// The whole record that `bytes` begin with, wherever they come from.
std::optional<Record> parse_record(std::string_view bytes);

// As crc32c.
using Checksum = std::function<uint32_t(std::string_view bytes, uint32_t crc)>;
// True if `bytes`, which are no whole record, begin with one but for a byte of its length. Takes
// checksums of each byte once, though one byte may be wrong in a thousand ways.
bool is_length_damaged(std::string_view bytes, const Checksum& checksum);

struct Segment {
  uint64_t first = 0;  // sequence
  std::filesystem::path path;
};

std::filesystem::path segment_path(const std::filesystem::path& folder, uint64_t first);

// Those of a folder, in order. Error kInvalid: the folder can't be read.
std::vector<Segment> segments_in(const std::filesystem::path& folder);

// There, in a journal's folder, while records that were acknowledged are lost; its text says which.
std::filesystem::path lost_file(const std::filesystem::path& folder);
// Error kInvalid, with that text: it is there.
void require_none_lost(const std::filesystem::path& folder);

// Where a segment's whole records end.
struct End {
  uint64_t next = 1;  // the sequence after its last record
  int64_t bytes = 0;
  int64_t torn = 0;  // bytes after that, which are no record
};

// Gives every record to `visit`, in order; a view's bytes live as long as the call. Error kInvalid:
// a record is damaged, or the file can't be read. In the `last` segment, what no whole record
// follows is torn instead: a writer was stopped there.
End read_segment(const Segment& segment, bool last,
                 const std::function<void(const Record&)>& visit);

// Where the records of a file begin, by their sequences, from byte `offset` on, where one does.
// Reads their headers alone. Error kInvalid: the system refuses.
std::map<uint64_t, int64_t> offsets_in(const File& file, int64_t offset);

// The record of a sequence in a file of records, at byte `offset` or behind the records that begin
// there. Reads no payload but its own. Error kInternal: it is not there, or is damaged; kInvalid:
// the system refuses.
StoredRecord read_record(const File& file, int64_t offset, uint64_t sequence);

}  // namespace twinkle::store
