#include "twinkle/store/segment.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <system_error>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"
#include "twinkle/store/crc32c.h"

namespace twinkle::store {

namespace fs = std::filesystem;

namespace {

constexpr size_t kDigits = 20;
constexpr std::string_view kSuffix = ".journal";
constexpr size_t kFixed = kHeaderBytes - 8;  // included in a record's length

template <class T>
void put(char* out, T value) {
  for (size_t i = 0; i < sizeof value; ++i) out[i] = static_cast<char>(value >> (8 * i) & 0xff);
}

template <class T>
T get(const char* in) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{static_cast<uint8_t>(in[i])} << (8 * i);
  return static_cast<T>(value);
}

uint32_t crc_of(const char* header, std::string_view payload) {
  return crc32c(payload, crc32c({header + 8, kFixed}, crc32c({header, 4})));
}

// As parse_record, if its sequence is from `low` to `high`.
std::optional<Record> parse(std::string_view bytes, uint64_t low, uint64_t high) {
  if (bytes.size() < kHeaderBytes) return std::nullopt;
  const size_t length = get<uint32_t>(bytes.data());
  if (length < kFixed || length > bytes.size() - 8) return std::nullopt;
  const Record record{.sequence = get<uint64_t>(bytes.data() + 8),
                      .kind = get<uint8_t>(bytes.data() + 16),
                      .version = get<uint16_t>(bytes.data() + 17),
                      .payload = bytes.substr(kHeaderBytes, length - kFixed)};
  if (record.sequence < low || record.sequence > high) return std::nullopt;
  if (get<uint32_t>(bytes.data() + 4) != crc_of(bytes.data(), record.payload)) return std::nullopt;
  return record;
}

// Where a record behind the damaged one, `next`, may begin. What is in that one is what clients
// sent, who may have made it look like records.
size_t behind(std::string_view bytes, uint64_t next) {
  if (bytes.size() < kHeaderBytes || get<uint64_t>(bytes.data() + 8) != next) return 1;
  const size_t length = get<uint32_t>(bytes.data());
  return length < kFixed || is_length_damaged(bytes, crc32c) ? 1 : 8 + length;
}

// True if a record later than `next` is somewhere in `bytes`: then what precedes it was damaged
// after it had been written.
bool record_follows(std::string_view bytes, uint64_t next) {
  const uint64_t high = next + bytes.size() / kHeaderBytes;
  for (size_t at = behind(bytes, next); at + kHeaderBytes <= bytes.size(); ++at)
    if (parse(bytes.substr(at), next + 1, high)) return true;
  return false;
}

}  // namespace

bool is_length_damaged(std::string_view bytes, const Checksum& checksum) {
  if (bytes.size() < kHeaderBytes) return false;
  std::string header(bytes.substr(0, kHeaderBytes));
  std::set<uint32_t> lengths;
  for (size_t at = 0; at < sizeof(uint32_t); ++at) {
    for (int value = 0; value < 256; ++value) {
      header[at] = static_cast<char>(value);
      const auto length = get<uint32_t>(header.data());
      if (length >= kFixed && length <= bytes.size() - 8) lengths.insert(length);
    }
    header[at] = bytes[at];
  }
  uint32_t prefix = 0;  // the checksum of a payload's `done` bytes, each of which is read once
  size_t done = 0;
  for (const uint32_t length : lengths) {
    const size_t size = length - kFixed;
    prefix = checksum(bytes.substr(kHeaderBytes + done, size - done), prefix);
    done = size;
    put(header.data(), length);
    const uint32_t of_header =
        checksum({header.data() + 8, kFixed}, checksum({header.data(), 4}, 0));
    if (get<uint32_t>(header.data() + 4) == crc32c_combined(of_header, prefix, size)) return true;
  }
  return false;
}

Header header_of(const Record& record) {
  Header out{};
  put(out.data(), static_cast<uint32_t>(kFixed + record.payload.size()));
  put(out.data() + 8, record.sequence);
  put(out.data() + 16, record.kind);
  put(out.data() + 17, record.version);
  put(out.data() + 4, crc_of(out.data(), record.payload));
  return out;
}

uint64_t payload_bytes(const Header& header) {
  const auto length = get<uint32_t>(header.data());
  return length < kFixed ? 0 : length - kFixed;
}

uint64_t sequence_of(const Header& header) { return get<uint64_t>(header.data() + 8); }

std::optional<Record> parse_record(std::string_view bytes) {
  return parse(bytes, 0, std::numeric_limits<uint64_t>::max());
}

fs::path segment_path(const fs::path& folder, uint64_t first) {
  const std::string digits = std::to_string(first);
  return folder / (std::string(kDigits - digits.size(), '0') + digits + std::string(kSuffix));
}

std::vector<Segment> segments_in(const fs::path& folder) {
  std::error_code error;
  std::vector<Segment> out;
  for (const std::string& name : names_in(folder, error)) {
    if (name.size() != kDigits + kSuffix.size() || !name.ends_with(kSuffix)) continue;
    uint64_t first = 0;
    const auto read = std::from_chars(name.data(), name.data() + kDigits, first);
    if (read.ec == std::errc{} && read.ptr == name.data() + kDigits && first > 0)
      out.push_back({first, folder / name});
  }
  require(!error, Code::kInvalid, "store: cannot read the folder ", folder.string(), ": ",
          error.message());
  std::ranges::sort(out, {}, &Segment::first);
  return out;
}

fs::path lost_file(const fs::path& folder) { return folder / "lost"; }

void require_none_lost(const fs::path& folder) {
  if (const fs::path lost = lost_file(folder); is_there(lost))
    fail(Code::kInvalid, read_file(lost, "store"), ", or, to go on with what is left, remove ",
         lost.string());
}

End read_segment(const Segment& segment, bool last,
                 const std::function<void(const Record&)>& visit) {
  const std::string bytes = read_file(segment.path, "store");
  End end{.next = segment.first};
  std::string_view rest = bytes;
  while (const auto record = parse(rest, end.next, end.next)) {
    visit(*record);
    const size_t size = kHeaderBytes + record->payload.size();
    rest.remove_prefix(size);
    end.bytes += static_cast<int64_t>(size);
    ++end.next;
  }
  end.torn = std::ssize(rest);
  if (rest.empty() || (last && !record_follows(rest, end.next))) return end;
  fail(Code::kInvalid, "store: ", segment.path.string(), " is damaged at byte ", end.bytes,
       ", where record ", end.next, " should be; later records are whole, so that cutting it there",
       " would lose them: restore a backup");
}

std::map<uint64_t, int64_t> offsets_in(const File& file, int64_t offset) {
  std::map<uint64_t, int64_t> out;
  Header header{};
  while (offset + static_cast<int64_t>(kHeaderBytes) <= file.size()) {
    file.read_at(offset, std::as_writable_bytes(std::span(header)));
    out[sequence_of(header)] = offset;
    offset += static_cast<int64_t>(kHeaderBytes + payload_bytes(header));
  }
  return out;
}

StoredRecord read_record(const File& file, int64_t offset, uint64_t sequence) {
  const auto read = [&](int64_t at, char* out, size_t size) {
    file.read_at(at, std::as_writable_bytes(std::span(out, size)));
  };
  Header header{};
  while (offset + static_cast<int64_t>(kHeaderBytes) <= file.size()) {
    read(offset, header.data(), kHeaderBytes);
    const int64_t length = get<uint32_t>(header.data());
    const int64_t end = offset + 8 + length;
    if (length < static_cast<int64_t>(kFixed) || end > file.size()) break;
    if (get<uint64_t>(header.data() + 8) == sequence) {
      StoredRecord out{.kind = get<uint8_t>(header.data() + 16),
                       .version = get<uint16_t>(header.data() + 17)};
      out.payload.resize(static_cast<size_t>(length) - kFixed);
      read(offset + static_cast<int64_t>(kHeaderBytes), out.payload.data(), out.payload.size());
      if (get<uint32_t>(header.data() + 4) != crc_of(header.data(), out.payload)) break;
      return out;
    }
    offset = end;
  }
  fail(Code::kInternal, "store: ", file.path().string(), " has no whole record ", sequence,
       " at byte ", offset, "; restore a backup");
}

}  // namespace twinkle::store
