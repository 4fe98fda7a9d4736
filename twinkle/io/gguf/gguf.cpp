#include "twinkle/io/gguf/gguf.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "twinkle/base/encoding/utf8.h"
#include "twinkle/base/error.h"
#include "twinkle/io/lfs_pointer.h"

namespace twinkle {
namespace {

struct BlockRow {
  GgufType type;
  GgufBlock block;
};

constexpr std::array<BlockRow, 6> kBlockRows = {{{GgufType::kF32, {1, 4}},
                                                 {GgufType::kF16, {1, 2}},
                                                 {GgufType::kBF16, {1, 2}},
                                                 {GgufType::kQ4_0, {32, 18}},
                                                 {GgufType::kQ4_1, {32, 20}},
                                                 {GgufType::kQ8_0, {32, 34}}}};

// By number, for error texts.
constexpr std::array<std::string_view, 31> kTypeNames = {
    "F32",     "F16",    "Q4_0",    "Q4_1",  "Q4_2",   "Q4_3",  "Q5_0",  "Q5_1",
    "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16"};

enum class Kind : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int64_t kMaxAlignment = 1 << 20;
constexpr int kMaxArrayDepth = 4;
// A large vocabulary's tokens, scores, types and merges are 1.5 million values.
constexpr uint64_t kMaxValues = uint64_t{1} << 22;
constexpr uint64_t kMaxTensors = uint64_t{1} << 20;
constexpr int64_t kMaxGgufHeaderBytes = int64_t{256} << 20;

// Reads forward through the file; every read is checked against its end.
class Cursor {
 public:
  explicit Cursor(const File& file) : file_(file), name_(file.path().string()) {}

  template <class T>
  T number(std::string_view what) {
    T value;
    take(std::as_writable_bytes(std::span(&value, 1)), what);
    return value;
  }

  std::string text(std::string_view what) {
    const auto size = number<uint64_t>(what);
    check(size, what);
    std::string text(size, '\0');
    take(std::as_writable_bytes(std::span<char>(text)), what);
    const size_t bad = invalid_utf8(text);
    require(bad == text.npos, Code::kInvalid, "io: ", name_, ": ", what, " is not UTF-8 at byte ",
            at_ - std::ssize(text) + static_cast<int64_t>(bad), " of the file");
    return text;
  }

  // Takes `count` of the metadata's values, which keeps their memory bounded.
  void count_values(uint64_t count, std::string_view key) {
    require(count <= values_left_, Code::kInvalid, "io: ", name_, ": metadata '", key, "' has ",
            count, " values, the limit is ", kMaxValues, " for all metadata together");
    values_left_ -= count;
  }

  int64_t at() const { return at_; }
  const std::string& file() const { return name_; }

 private:
  void check(uint64_t count, std::string_view what) const {
    require(count <= static_cast<uint64_t>(file_.size() - at_), Code::kInvalid, "io: ", name_, ": ",
            what, " at byte ", at_, " takes ", count, " bytes, but only ", file_.size() - at_,
            " follow: the file is truncated or damaged, fetch it again");
    require(static_cast<int64_t>(count) <= kMaxGgufHeaderBytes - at_, Code::kInvalid, "io: ", name_,
            ": ", what, " ends after byte ", kMaxGgufHeaderBytes,
            ", the limit for everything before the tensors");
  }

  void take(std::span<std::byte> out, std::string_view what) {
    check(out.size(), what);
    while (!out.empty()) {
      if (used_ == buffer_.size()) refill();
      const size_t count = std::min(out.size(), buffer_.size() - used_);
      std::memcpy(out.data(), buffer_.data() + used_, count);
      used_ += count;
      at_ += static_cast<int64_t>(count);
      out = out.subspan(count);
    }
  }

  void refill() {
    buffer_.resize(static_cast<size_t>(std::min(file_.size() - at_, int64_t{1} << 16)));
    file_.read_at(at_, buffer_);
    used_ = 0;
  }

  const File& file_;
  std::string name_;
  int64_t at_ = 0;
  std::vector<std::byte> buffer_;  // the bytes before and behind at_
  size_t used_ = 0;                // position in buffer_
  uint64_t values_left_ = kMaxValues;
};

// The double of the float's shortest decimal: 1e-05 where a cast gives 9.99999974737875e-06.
double decimal_of(float value) {
  if (!std::isfinite(value)) return value;
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double decimal = 0;
  std::from_chars(text.data(), end, decimal);
  return decimal;
}

Json value_of(Cursor& in, Kind kind, std::string_view key, int depth = 0);

Json array_of(Cursor& in, std::string_view key, int depth) {
  require(depth < kMaxArrayDepth, Code::kInvalid, "io: ", in.file(), ": metadata '", key,
          "' nests arrays deeper than ", kMaxArrayDepth);
  const auto kind = static_cast<Kind>(in.number<uint32_t>(key));
  const auto count = in.number<uint64_t>(key);
  in.count_values(count, key);
  JsonArray values;  // grows as it is read: `count` is not to be trusted
  for (uint64_t i = 0; i < count; ++i) values.push_back(value_of(in, kind, key, depth + 1));
  return values;
}

Json value_of(Cursor& in, Kind kind, std::string_view key, int depth) {
  switch (kind) {
    case Kind::kU8:
      return in.number<uint8_t>(key);
    case Kind::kI8:
      return in.number<int8_t>(key);
    case Kind::kU16:
      return in.number<uint16_t>(key);
    case Kind::kI16:
      return in.number<int16_t>(key);
    case Kind::kU32:
      return static_cast<int64_t>(in.number<uint32_t>(key));
    case Kind::kI32:
      return in.number<int32_t>(key);
    case Kind::kF32:
      return decimal_of(in.number<float>(key));
    case Kind::kBool:
      return in.number<uint8_t>(key) != 0;
    case Kind::kString:
      return Json(in.text(key));
    case Kind::kArray:
      return array_of(in, key, depth);
    case Kind::kU64: {
      const auto value = in.number<uint64_t>(key);
      return value <= INT64_MAX ? Json(static_cast<int64_t>(value)) : Json(value);
    }
    case Kind::kI64:
      return in.number<int64_t>(key);
    case Kind::kF64:
      return in.number<double>(key);
  }
  fail(Code::kInvalid, "io: ", in.file(), ": metadata '", key, "' has the value type ",
       static_cast<uint32_t>(kind), ", known are 0 to 12");
}

JsonObject metadata_of(Cursor& in, uint64_t count) {
  JsonObject metadata;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key = in.text("a metadata key");
    in.count_values(1, key);
    const auto kind = static_cast<Kind>(in.number<uint32_t>(key));
    const bool fresh = metadata.emplace(key, value_of(in, kind, key)).second;
    require(fresh, Code::kInvalid, "io: ", in.file(), ": metadata '", key, "' appears twice");
  }
  return metadata;
}

GgufType type_of(uint32_t type, const std::string& where) {
  for (const BlockRow& row : kBlockRows) {
    if (static_cast<uint32_t>(row.type) == type) return row.type;
  }
  const std::string name =
      type < kTypeNames.size() ? std::string(kTypeNames[type]) : "number " + std::to_string(type);
  fail(Code::kInvalid, where, " has the type ", name,
       ", it must be one of F32, F16, BF16, Q4_0, Q4_1, Q8_0: convert the file to one of these");
}

// Its `begin` counts from the start of the data yet.
GgufTensor tensor_of(Cursor& in) {
  GgufTensor tensor;
  tensor.name = in.text("a tensor's name");
  const std::string where = "io: " + in.file() + ": tensor '" + tensor.name + "'";
  const auto num_dims = in.number<uint32_t>(tensor.name);
  require(num_dims <= 4, Code::kInvalid, where, " has ", num_dims, " dims, the limit is 4");
  for (uint32_t i = 0; i < num_dims; ++i) {
    const auto dim = in.number<uint64_t>(tensor.name);
    require(dim > 0 && dim <= INT64_MAX, Code::kInvalid, where, " has a dim of ", dim);
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
  }
  tensor.type = type_of(in.number<uint32_t>(tensor.name), where);
  const GgufBlock block = block_of(tensor.type);
  const auto offset = in.number<uint64_t>(tensor.name);
  require(offset <= INT64_MAX, Code::kInvalid, where, " begins at byte ", offset, " of the data");
  tensor.begin = static_cast<int64_t>(offset);
  const std::optional<int64_t> count = num_elements(tensor.shape);
  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  require(count && row % block.values == 0 &&
              !__builtin_mul_overflow(*count / block.values, block.bytes, &tensor.num_bytes),
          Code::kInvalid, where, ": shape ", shape_text(tensor.shape), " does not fit blocks of ",
          block.values, " values");
  return tensor;
}

// Checks and sorts them, and makes `begin` count from the start of the file. The data are what
// follows the header and its padding.
void place(std::vector<GgufTensor>& all, int64_t data_begin, int64_t data_size, int64_t alignment,
           const std::string& file) {
  std::sort(all.begin(), all.end(), [](const GgufTensor& a, const GgufTensor& b) {
    return std::pair(a.begin, a.num_bytes) < std::pair(b.begin, b.num_bytes);
  });
  std::unordered_set<std::string_view> seen;
  int64_t end = 0;
  for (GgufTensor& tensor : all) {
    const std::string where = "io: " + file + ": tensor '" + tensor.name + "'";
    require(seen.insert(tensor.name).second, Code::kInvalid, where, " appears twice");
    require(tensor.begin <= data_size && tensor.num_bytes <= data_size - tensor.begin,
            Code::kInvalid, where, " takes ", tensor.num_bytes, " bytes from byte ", tensor.begin,
            " of the data, but the file holds only ", data_size,
            ": it is truncated, fetch it again");
    require(tensor.begin % alignment == 0, Code::kInvalid, where, " begins at byte ", tensor.begin,
            " of the data, it must be a multiple of ", alignment);
    require(tensor.begin >= end, Code::kInvalid, where, " begins at byte ", tensor.begin,
            " of the data, inside the one before it, which ends at ", end);
    end = tensor.begin + tensor.num_bytes;
    tensor.begin += data_begin;
  }
}

}  // namespace

GgufBlock block_of(GgufType type) {
  const auto* const row =
      std::ranges::find_if(kBlockRows, [&](const BlockRow& row) { return row.type == type; });
  return row->block;
}

GgufFile::GgufFile(const std::filesystem::path& file) : file_(std::make_shared<const File>(file)) {
  const std::string name = file.string();
  refuse_lfs_pointer(*file_);
  Cursor in(*file_);
  require(file_->size() >= 4 && in.number<uint32_t>("") == kMagic, Code::kInvalid, "io: ", name,
          " does not begin with 'GGUF': this is no GGUF file");
  const auto version = in.number<uint32_t>("the version");
  require(version == 2 || version == 3, Code::kInvalid, "io: ", name, ": GGUF version is ", version,
          ", it must be 2 or 3 (little-endian)");
  const auto num_tensors = in.number<uint64_t>("the tensor count");
  const auto num_keys = in.number<uint64_t>("the metadata count");
  metadata_ = metadata_of(in, num_keys);
  const auto alignment = get_or<int64_t>(metadata_, "general.alignment", 32);
  require(alignment > 0 && alignment <= kMaxAlignment, Code::kInvalid, "io: ", name,
          ": general.alignment is ", alignment, ", it must be from 1 to ", kMaxAlignment);
  require(num_tensors <= kMaxTensors, Code::kInvalid, "io: ", name, ": the tensor count is ",
          num_tensors, ", the limit is ", kMaxTensors);
  for (uint64_t i = 0; i < num_tensors; ++i) tensors_.push_back(tensor_of(in));
  const int64_t padded = (in.at() + alignment - 1) / alignment * alignment;
  const int64_t begin = std::min(padded, file_->size());
  place(tensors_, begin, file_->size() - begin, alignment, name);
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const GgufTensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

}  // namespace twinkle
