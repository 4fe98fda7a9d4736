#include "twinkle/io/safetensors.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/json.h"

namespace twinkle {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr std::string_view kMetadata = "__metadata__";

struct Entry {
  TensorView view;
  int64_t begin = 0;  // bytes from the start of the data
  int64_t end = 0;
};

std::string in_quotes(std::string_view name) { return std::string("'").append(name).append("'"); }

// The JSON text between the length and the data.
std::string_view header_text(std::span<const std::byte> bytes, const std::string& file) {
  require(bytes.size() >= 8, Code::kInvalid, "io: ", file, " is ", bytes.size(),
          " bytes, a safetensors file has at least 8: it is truncated or of another kind");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  require(length <= kMaxHeaderBytes, Code::kInvalid, "io: ", file, ": header length is ", length,
          ", it must be at most ", kMaxHeaderBytes, ": this is no safetensors file");
  require(length <= bytes.size() - 8, Code::kInvalid, "io: ", file, ": header length is ", length,
          ", but only ", bytes.size() - 8, " bytes follow: the file is truncated, fetch it again");
  return {reinterpret_cast<const char*>(bytes.data()) + 8, length};
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

Entry entry_of(std::string_view name, const Json& value, std::span<const std::byte> data,
               const std::string& file) {
  const std::string where = "io: " + file + ": tensor " + in_quotes(name);
  const Json* dtype = find(value, "dtype");
  require(dtype != nullptr && dtype->is_string(), Code::kInvalid, where,
          ": 'dtype' must be a string");
  const std::string_view spelled = dtype->get_string();
  const std::optional<Dtype> known = dtype_named(spelled);
  require(known.has_value(), Code::kInvalid, where, ": dtype is ", in_quotes(spelled),
          ", it must be one of F64, F32, F16, BF16, I64, I32, I16, I8, U8, BOOL");
  Entry entry{.view = {.name = std::string(name),
                       .dtype = *known,
                       .shape = integers(value, "shape", where),
                       .bytes = {}}};
  const std::vector<int64_t> offsets = integers(value, "data_offsets", where);
  require(offsets.size() == 2, Code::kInvalid, where, ": 'data_offsets' has ", offsets.size(),
          " values, it must have 2");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  require(entry.begin <= entry.end, Code::kInvalid, where, ": begins at byte ", entry.begin,
          " and ends at byte ", entry.end, ", before it begins");
  require(static_cast<uint64_t>(entry.end) <= data.size(), Code::kInvalid, where, ": ends at byte ",
          entry.end, " of the data, but the file holds only ", data.size(),
          ": it is truncated, fetch it again");
  int64_t expected = 0;
  const std::optional<int64_t> count = num_elements(entry.view.shape);
  require(count && !__builtin_mul_overflow(*count, size_of(*known), &expected) &&
              expected == entry.end - entry.begin,
          Code::kInvalid, where, ": shape ", shape_text(entry.view.shape), " of ", spelled,
          " does not fit its ", entry.end - entry.begin, " bytes");
  entry.view.bytes = data.subspan(entry.begin, entry.end - entry.begin);
  return entry;
}

void refuse_holes(const std::vector<Entry>& sorted, size_t data_size, const std::string& file) {
  int64_t end = 0;
  for (const Entry& entry : sorted) {
    require(entry.begin == end, Code::kInvalid, "io: ", file, ": tensor ",
            in_quotes(entry.view.name), " begins at byte ", entry.begin,
            " of the data, it must begin at ", end, ", where the one before it ends");
    end = entry.end;
  }
  require(static_cast<uint64_t>(end) == data_size, Code::kInvalid, "io: ", file, ": ",
          data_size - end, " bytes follow the last tensor, which ends at byte ", end);
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

SafetensorsFile::SafetensorsFile(const std::filesystem::path& file) : file_(file) {
  const std::string name = file.string();
  const std::string_view text = header_text(file_.bytes(), name);
  const Json header = parse_json(text, name);
  require(header.is_object(), Code::kInvalid, "io: ", name, ": the header must be a JSON object");
  refuse_duplicate_names(text, header.get_object().size(), name);
  const std::span<const std::byte> data = file_.bytes().subspan(8 + text.size());
  std::vector<Entry> entries;
  for (const auto& [key, value] : header.get_object()) {
    if (key == kMetadata) {
      metadata_ = metadata_of(value, name);
    } else {
      entries.push_back(entry_of({key.data(), key.size()}, value, data, name));
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  refuse_holes(entries, data.size(), name);
  for (Entry& entry : entries) tensors_.push_back(std::move(entry.view));
}

}  // namespace twinkle
