#include "twinkle/io/gguf/gguf.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle {
namespace {

struct BlockRow {
  GgufType type;
  int64_t values;  // per block
  int64_t bytes;   // per block
};

constexpr std::array<BlockRow, 6> kBlocks = {{{GgufType::kF32, 1, 4},
                                              {GgufType::kF16, 1, 2},
                                              {GgufType::kBF16, 1, 2},
                                              {GgufType::kQ4_0, 32, 18},
                                              {GgufType::kQ4_1, 32, 20},
                                              {GgufType::kQ8_0, 32, 34}}};

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

constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr int kMaxArrayDepth = 4;

// Reads forward through the file; every read is checked against its end.
class Cursor {
 public:
  Cursor(std::span<const std::byte> bytes, std::string file)
      : bytes_(bytes), file_(std::move(file)) {}

  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    require(count <= bytes_.size() - at_, Code::kInvalid, "io: ", file_, ": ", what, " at byte ",
            at_, " takes ", count, " bytes, but only ", bytes_.size() - at_,
            " follow: the file is truncated or damaged, fetch it again");
    at_ += count;
    return bytes_.subspan(at_ - count, count);
  }

  template <class T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::string text(std::string_view what) {
    const auto bytes = take(number<uint64_t>(what), what);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  size_t at() const { return at_; }
  const std::string& file() const { return file_; }

 private:
  std::span<const std::byte> bytes_;
  std::string file_;
  size_t at_ = 0;
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
    const auto kind = static_cast<Kind>(in.number<uint32_t>(key));
    const bool fresh = metadata.emplace(key, value_of(in, kind, key)).second;
    require(fresh, Code::kInvalid, "io: ", in.file(), ": metadata '", key, "' is there twice");
  }
  return metadata;
}

const BlockRow& block_of(uint32_t type, const std::string& where) {
  for (const BlockRow& row : kBlocks) {
    if (static_cast<uint32_t>(row.type) == type) return row;
  }
  const std::string name =
      type < kTypeNames.size() ? std::string(kTypeNames[type]) : "number " + std::to_string(type);
  fail(Code::kInvalid, where, " has the type ", name,
       ", it must be one of F32, F16, BF16, Q4_0, Q4_1, Q8_0: convert the file to one of these");
}

struct Placed {
  GgufTensor tensor;
  uint64_t offset = 0;  // bytes from the start of the data
  int64_t size = 0;     // bytes
};

Placed tensor_of(Cursor& in) {
  Placed placed;
  GgufTensor& tensor = placed.tensor;
  tensor.name = in.text("a tensor's name");
  const std::string where = "io: " + in.file() + ": tensor '" + tensor.name + "'";
  const auto num_dims = in.number<uint32_t>(tensor.name);
  require(num_dims <= 4, Code::kInvalid, where, " has ", num_dims, " dims, it may have 4");
  for (uint32_t i = 0; i < num_dims; ++i) {
    const auto dim = in.number<uint64_t>(tensor.name);
    require(dim <= INT64_MAX, Code::kInvalid, where, " has a dim of ", dim);
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
  }
  const BlockRow& block = block_of(in.number<uint32_t>(tensor.name), where);
  tensor.type = block.type;
  placed.offset = in.number<uint64_t>(tensor.name);
  const std::optional<int64_t> count = num_elements(tensor.shape);
  const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  require(count && row % block.values == 0 &&
              !__builtin_mul_overflow(*count / block.values, block.bytes, &placed.size),
          Code::kInvalid, where, ": shape ", shape_text(tensor.shape), " does not fit blocks of ",
          block.values, " values");
  return placed;
}

// Points every tensor at its bytes. `data` is what follows the header and its padding.
void place(std::vector<Placed>& all, std::span<const std::byte> data, uint64_t alignment,
           const std::string& file) {
  std::sort(all.begin(), all.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.offset, a.size) < std::pair(b.offset, b.size);
  });
  std::unordered_set<std::string_view> seen;
  uint64_t end = 0;
  for (Placed& placed : all) {
    const std::string where = "io: " + file + ": tensor '" + placed.tensor.name + "'";
    const auto size = static_cast<uint64_t>(placed.size);
    require(seen.insert(placed.tensor.name).second, Code::kInvalid, where, " is there twice");
    require(placed.offset <= data.size() && size <= data.size() - placed.offset, Code::kInvalid,
            where, " takes ", size, " bytes from byte ", placed.offset,
            " of the data, but the file holds only ", data.size(),
            ": it is truncated, fetch it again");
    require(placed.offset % alignment == 0, Code::kInvalid, where, " begins at byte ",
            placed.offset, " of the data, it must be a multiple of ", alignment);
    require(placed.offset >= end, Code::kInvalid, where, " begins at byte ", placed.offset,
            " of the data, inside the one before it, which ends at ", end);
    end = placed.offset + size;
    placed.tensor.bytes = data.subspan(placed.offset, size);
  }
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& file) : file_(file) {
  const std::string name = file.string();
  Cursor in(file_.bytes(), name);
  require(file_.bytes().size() >= 4 && std::memcmp(in.take(4, "").data(), "GGUF", 4) == 0,
          Code::kInvalid, "io: ", name, " does not begin with 'GGUF': this is no GGUF file");
  const auto version = in.number<uint32_t>("the version");
  require(version == 2 || version == 3, Code::kInvalid, "io: ", name, ": GGUF version is ", version,
          ", it must be 2 or 3 (little-endian)");
  const auto num_tensors = in.number<uint64_t>("the tensor count");
  const auto num_keys = in.number<uint64_t>("the metadata count");
  metadata_ = metadata_of(in, num_keys);
  const auto alignment = get_or<int64_t>(metadata_, "general.alignment", 32);
  require(alignment > 0 && static_cast<uint64_t>(alignment) <= kMaxAlignment, Code::kInvalid,
          "io: ", name, ": general.alignment is ", alignment, ", it must be from 1 to ",
          kMaxAlignment);
  std::vector<Placed> all;
  for (uint64_t i = 0; i < num_tensors; ++i) all.push_back(tensor_of(in));
  const size_t padded = (in.at() + alignment - 1) / alignment * alignment;
  place(all, file_.bytes().subspan(std::min(padded, file_.bytes().size())), alignment, name);
  for (Placed& placed : all) tensors_.push_back(std::move(placed.tensor));
}

const GgufTensor* GgufFile::find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const GgufTensor& tensor) { return tensor.name == name; });
  return found == tensors_.end() ? nullptr : &*found;
}

}  // namespace twinkle
