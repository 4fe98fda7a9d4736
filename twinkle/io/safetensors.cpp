#include "twinkle/io/safetensors.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"
#include "twinkle/io/lfs_pointer.h"

namespace twinkle {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr std::string_view kMetadata = "__metadata__";

struct Entry {
  StoredTensor tensor;
  int64_t begin = 0;  // bytes from the start of the data
  int64_t end = 0;
};

std::string in_quotes(std::string_view name) { return std::string("'").append(name).append("'"); }

// The JSON text between the length and the data.
std::string header_text(const File& file) {
  const std::string name = file.path().string();
  require(file.size() >= 8, Code::kInvalid, "io: ", name, " is ", file.size(),
          " bytes, a safetensors file has at least 8: it is truncated or of another kind");
  refuse_lfs_pointer(file);
  uint64_t length = 0;
  file.read_at(0, std::as_writable_bytes(std::span(&length, 1)));
  require(length <= kMaxHeaderBytes, Code::kInvalid, "io: ", name, ": header length is ", length,
          ", it must be at most ", kMaxHeaderBytes, ": this is no safetensors file");
  require(static_cast<int64_t>(length) <= file.size() - 8, Code::kInvalid, "io: ", name,
          ": header length is ", length, ", but only ", file.size() - 8,
          " bytes follow: the file is truncated, fetch it again");
  std::string text(length, '\0');
  file.read_at(8, std::as_writable_bytes(std::span<char>(text)));
  return text;
}

// Parsers keep the last of two equal keys, so the raw text is searched for them. `text` is valid
// JSON.
void refuse_duplicate_names(std::string_view text, size_t num_keys, const std::string& file) {
  std::unordered_set<std::string_view> seen;
  size_t depth = 0, colons = 0;
  std::string_view last;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c == ':' && depth == 1) {
      ++colons;
      require(seen.insert(last).second, Code::kInvalid, "io: ", file, ": tensor ", in_quotes(last),
              " is in the header twice");
    }
    if (c != '"') continue;
    const size_t start = ++i;
    while (text[i] != '"') i += text[i] == '\\' ? 2 : 1;
    last = text.substr(start, i - start);
  }
  require(colons == num_keys, Code::kInvalid, "io: ", file, ": the header has ", colons,
          " keys, but only ", num_keys, " different ones");
}

std::vector<int64_t> integers(const Json& object, std::string_view key, const std::string& where) {
  const Json* found = find(object, key);
  require(found != nullptr && found->is_array(), Code::kInvalid, where, ": '", key,
          "' must be a list of integers");
  std::vector<int64_t> values;
  for (const Json& item : found->get_array()) {
    require(item.is_int64() && item.get_int64() >= 0, Code::kInvalid, where, ": '", key, "' holds ",
            boost::json::serialize(item), ", it must hold integers from 0 to 2^63-1");
    values.push_back(item.get_int64());
  }
  return values;
}

// `data_size`: bytes behind the header.
Entry entry_of(std::string_view name, const Json& value, int64_t data_size,
               const std::string& file) {
  const std::string where = "io: " + file + ": tensor " + in_quotes(name);
  const Json* dtype = find(value, "dtype");
  require(dtype != nullptr && dtype->is_string(), Code::kInvalid, where,
          ": 'dtype' must be a string");
  const std::string_view spelled = dtype->get_string();
  const std::optional<Dtype> known = dtype_named(spelled);
  require(known.has_value(), Code::kInvalid, where, ": dtype is ", in_quotes(spelled),
          ", it must be one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL, F8_E4M3");
  Entry entry{.tensor = {.name = std::string(name),
                         .dtype = *known,
                         .shape = integers(value, "shape", where)}};
  const std::vector<int64_t> offsets = integers(value, "data_offsets", where);
  require(offsets.size() == 2, Code::kInvalid, where, ": 'data_offsets' has ", offsets.size(),
          " values, it must have 2");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  require(entry.begin <= entry.end, Code::kInvalid, where, ": begins at byte ", entry.begin,
          " and ends at byte ", entry.end, ", before it begins");
  require(entry.end <= data_size, Code::kInvalid, where, ": ends at byte ", entry.end,
          " of the data, but the file holds only ", data_size, ": it is truncated, fetch it again");
  require(bytes_of(*known, entry.tensor.shape) == entry.end - entry.begin, Code::kInvalid, where,
          ": shape ", shape_text(entry.tensor.shape), " of ", spelled, " does not fit its ",
          entry.end - entry.begin, " bytes");
  return entry;
}

void refuse_holes(const std::vector<Entry>& sorted, int64_t data_size, const std::string& file) {
  int64_t end = 0;
  for (const Entry& entry : sorted) {
    require(entry.begin == end, Code::kInvalid, "io: ", file, ": tensor ",
            in_quotes(entry.tensor.name), " begins at byte ", entry.begin,
            " of the data, it must begin at ", end, ", where the one before it ends");
    end = entry.end;
  }
  require(end == data_size, Code::kInvalid, "io: ", file, ": ", data_size - end,
          " bytes follow the last tensor, which ends at byte ", end);
}

std::map<std::string, std::string> metadata_of(const Json& value, const std::string& file) {
  require(value.is_object(), Code::kInvalid, "io: ", file, ": '__metadata__' must be an object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, item] : value.get_object()) {
    require(item.is_string(), Code::kInvalid, "io: ", file, ": metadata ",
            in_quotes({key.data(), key.size()}), " must be a string");
    metadata.emplace(key, item.get_string());
  }
  return metadata;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file)
    : file_(std::make_shared<const File>(file)) {
  const std::string name = file.string();
  const std::string text = header_text(*file_);
  const Json header = parse_json(text, name);
  require(header.is_object(), Code::kInvalid, "io: ", name, ": the header must be a JSON object");
  refuse_duplicate_names(text, header.get_object().size(), name);
  const int64_t data_begin = 8 + std::ssize(text), data_size = file_->size() - data_begin;
  std::vector<Entry> entries;
  for (const auto& [key, value] : header.get_object()) {
    if (key == kMetadata) {
      metadata_ = metadata_of(value, name);
    } else {
      entries.push_back(entry_of({key.data(), key.size()}, value, data_size, name));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  refuse_holes(entries, data_size, name);
  for (Entry& entry : entries) {
    entry.tensor.reader = read_from(file_, data_begin + entry.begin);
    tensors_.push_back(std::move(entry.tensor));
  }
}

}  // namespace twinkle
