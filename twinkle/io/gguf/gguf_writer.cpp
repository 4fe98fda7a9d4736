#include "twinkle/io/gguf/gguf_writer.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "twinkle/base/error.h"
#include "twinkle/io/atomic.h"

namespace twinkle {
namespace {

constexpr int64_t kAlignment = 32;  // bytes; GGUF's own where no key names another

// Kinds of metadata, by number.
constexpr uint32_t kKindU32 = 4, kKindI32 = 5, kKindF32 = 6, kKindBool = 7, kKindString = 8,
                   kKindArray = 9;

class Bytes {
 public:
  template <class T>
  void number(T value) {
    const size_t at = text_.size();
    text_.resize(at + sizeof value);
    std::memcpy(text_.data() + at, &value, sizeof value);
  }
  void text(std::string_view value) {
    number<uint64_t>(value.size());
    text_ += value;
  }
  void pad() { text_.resize((text_.size() + kAlignment - 1) / kAlignment * kAlignment); }
  const std::string& all() const { return text_; }

 private:
  std::string text_;
};

struct PutValue {
  Bytes& out;

  void operator()(uint32_t value) const { out.number(kKindU32), out.number(value); }
  void operator()(float value) const { out.number(kKindF32), out.number(value); }
  void operator()(bool value) const { out.number(kKindBool), out.number<uint8_t>(value); }
  void operator()(const std::string& value) const { out.number(kKindString), out.text(value); }
  void operator()(const std::vector<int32_t>& values) const {
    begin_array(kKindI32, values.size());
    for (const int32_t value : values) out.number(value);
  }
  void operator()(const std::vector<std::string>& values) const {
    begin_array(kKindString, values.size());
    for (const std::string& value : values) out.text(value);
  }

  void begin_array(uint32_t kind, uint64_t count) const {
    out.number(kKindArray), out.number(kind), out.number(count);
  }
};

int64_t padded(int64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

int64_t bytes_in(const GgufOutput& tensor) {
  const GgufBlock block = block_of(tensor.type);
  return num_elements(tensor.values.shape).value_or(0) / block.values * block.bytes;
}

// Names once, and rows of whole blocks.
void check_outputs(const GgufMetadata& metadata, std::span<const GgufOutput> tensors) {
  std::set<std::string_view> keys, names;
  for (const auto& [key, value] : metadata)
    require(keys.insert(key).second, Code::kInvalid, "io: metadata '", key, "' is given twice");
  for (const GgufOutput& tensor : tensors) {
    const StoredTensor& values = tensor.values;
    require(names.insert(values.name).second, Code::kInvalid, "io: tensor '", values.name,
            "' is given twice");
    require(!values.shape.empty() && values.shape.back() % block_of(tensor.type).values == 0,
            Code::kInvalid, "io: tensor '", values.name, "': rows of shape ",
            shape_text(values.shape), " are no multiple of ", block_of(tensor.type).values,
            " values, as Q8_0 has them; write F16");
  }
}

std::string header_of(const GgufMetadata& metadata, std::span<const GgufOutput> tensors) {
  Bytes out;
  out.number<uint32_t>(0x46554747);  // "GGUF"
  out.number<uint32_t>(3);
  out.number<uint64_t>(tensors.size());
  out.number<uint64_t>(metadata.size());
  for (const auto& [key, value] : metadata) {
    out.text(key);
    std::visit(PutValue{out}, value);
  }
  int64_t begin = 0;
  for (const GgufOutput& tensor : tensors) {
    out.text(tensor.values.name);
    out.number<uint32_t>(static_cast<uint32_t>(tensor.values.shape.size()));
    for (auto dim = tensor.values.shape.rbegin(); dim != tensor.values.shape.rend(); ++dim)
      out.number<uint64_t>(static_cast<uint64_t>(*dim));
    out.number(static_cast<uint32_t>(tensor.type));
    out.number<uint64_t>(static_cast<uint64_t>(begin));
    begin += padded(bytes_in(tensor));
  }
  out.pad();
  return out.all();
}

GgufType plain_type(const StoredTensor& tensor) {
  for (const auto& [dtype, type] : {std::pair{Dtype::kF32, GgufType::kF32},
                                    {Dtype::kF16, GgufType::kF16},
                                    {Dtype::kBF16, GgufType::kBF16}})
    if (tensor.dtype == dtype) return type;
  fail(Code::kInvalid, "io: tensor '", tensor.name, "' is ", name_of(tensor.dtype),
       ", it must be F32, F16 or BF16");
}

void write_tensor(AtomicFile& out, const GgufOutput& tensor) {
  constexpr int64_t kChunk = int64_t{1} << 18;  // values; whole blocks
  const GgufType from = plain_type(tensor.values);
  const GgufBlock block = block_of(tensor.type);
  const int64_t size = size_of(tensor.values.dtype);
  const int64_t count = num_elements(tensor.values.shape).value_or(0);
  std::vector<std::byte> raw, blocks;
  std::vector<float> values;
  for (int64_t at = 0; at < count; at += kChunk) {
    const int64_t part = std::min(kChunk, count - at);
    raw.resize(static_cast<size_t>(part * size));
    values.resize(static_cast<size_t>(part));
    blocks.resize(static_cast<size_t>(part / block.values * block.bytes));
    tensor.values.read(raw, at * size);
    dequantize(from, raw, values);
    require(quantize(tensor.type, values, blocks), Code::kInvalid, "io: tensor '",
            tensor.values.name,
            "' holds a number that is not finite, or beyond 65504, F16's "
            "largest");
    out.write(blocks);
  }
  const std::vector<std::byte> rest(
      static_cast<size_t>(padded(bytes_in(tensor)) - bytes_in(tensor)));
  out.write(rest);
}

}  // namespace

void write_gguf(const std::filesystem::path& file, const GgufMetadata& metadata,
                std::span<const GgufOutput> tensors) {
  check_outputs(metadata, tensors);
  AtomicFile out(file, Commits::kWithFolder);
  out.write(header_of(metadata, tensors));
  for (const GgufOutput& tensor : tensors) write_tensor(out, tensor);
  out.commit();
}

StoredTensor interleaved(StoredTensor tensor, int64_t num_heads) {
  const int64_t rows = tensor.shape.at(0), half = rows / num_heads / 2;
  require(rows == 2 * half * num_heads, Code::kInvalid, "io: tensor '", tensor.name, "' has ", rows,
          " rows, they must be a multiple of twice ", num_heads, " heads");
  const int64_t row_bytes = tensor.num_bytes() / rows;
  tensor.reader = [read = std::move(tensor.reader), row_bytes, half](int64_t offset,
                                                                     std::span<std::byte> out) {
    while (!out.empty()) {
      const int64_t to = offset / row_bytes, skipped = offset % row_bytes;
      const int64_t head = to / (2 * half), i = to % (2 * half) / 2, j = to % 2;
      const int64_t from = head * 2 * half + j * half + i;
      const int64_t count = std::min(row_bytes - skipped, std::ssize(out));
      read(from * row_bytes + skipped, out.first(static_cast<size_t>(count)));
      offset += count;
      out = out.subspan(static_cast<size_t>(count));
    }
  };
  return tensor;
}

}  // namespace twinkle
