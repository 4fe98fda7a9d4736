// Operations and results as bytes: u8 format, u8 kind (its place in the variant), then the struct
// as base/fields/codec.h has it. And how much memory they take.
#include "twinkle/base/fields/codec.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"

namespace twinkle::engine {
namespace {

// 8 and below listed fields by place, and nothing keeps such bytes.
constexpr uint8_t kFormat = 9;

template <class Variant>
std::string written(const Variant& value) {
  ByteWriter writer;
  writer.put(kFormat);
  writer.put(static_cast<uint8_t>(value.index()));
  std::visit([&](const auto& v) { writer.sized(v); }, value);
  return writer.take();
}

template <class Variant, size_t I = 0>
Variant read_kind(uint8_t kind, ByteReader& reader, std::string_view what) {
  if constexpr (I == std::variant_size_v<Variant>) {
    fail(Code::kInvalid, what, " are of kind ", static_cast<int>(kind),
         ", which is unknown; the last is ", I - 1);
  } else {
    if (kind != I) return read_kind<Variant, I + 1>(kind, reader, what);
    std::variant_alternative_t<I, Variant> value;
    reader.item(value);
    reader.require_end();
    return value;
  }
}

template <class Variant>
Variant read(std::span<const char> bytes, std::string_view what) {
  require(bytes.size() <= kMaxOperationBytes, Code::kInvalid, what, " are ", bytes.size(),
          ", they may be at most ", kMaxOperationBytes);
  ByteReader reader(bytes, what, kMaxOperationBytes);
  const auto format = reader.get<uint8_t>(), kind = reader.get<uint8_t>();
  require(format == kFormat, Code::kInvalid, what, " are of format ", static_cast<int>(format),
          ", this program reads ", static_cast<int>(kFormat));
  return read_kind<Variant>(kind, reader, what);
}

template <class Variant>
int64_t memory_of(const Variant& value) {
  MemorySize size;
  std::visit([&](const auto& v) { size.add(v); }, value);
  return static_cast<int64_t>(sizeof(Variant)) + size.bytes();
}

}  // namespace

const std::string& tenant_of(const Operation& operation) {
  return std::visit([](const auto& op) -> const std::string& { return op.tenant; }, operation);
}

int64_t num_bytes(const Operation& operation) { return memory_of(operation); }
int64_t num_bytes(const Result& result) { return memory_of(result); }

std::string to_bytes(const Operation& operation) { return written(operation); }
std::string to_bytes(const Result& result) { return written(result); }

Operation from_bytes(std::span<const char> bytes) {
  return read<Operation>(bytes, "engine: an operation's bytes");
}
Result result_from_bytes(std::span<const char> bytes) {
  return read<Result>(bytes, "engine: a result's bytes");
}

}  // namespace twinkle::engine
