#include "twinkle/io/fp8/fp8.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle {
namespace {

constexpr std::string_view kFactors = "_scale_inv";
constexpr const char* kFetch = "fetch the checkpoint again";
constexpr const char* kOther =
    "use an unquantised checkpoint, fp8 weights with weight_block_size or a GGUF file";

struct BlockSize {
  int64_t rows, columns;
};

int64_t blocks_of(int64_t size, int64_t block) { return (size + block - 1) / block; }

BlockSize read_block(const Json& config, const std::string& path) {
  const Json* quantised = find(config, "quantization_config");
  require(quantised && quantised->is_object(), Code::kInvalid, "io: ", path,
          " holds F8_E4M3 tensors, but its config.json has no quantization_config; ", kFetch);
  const auto is = [&](const char* key, const char* known) {
    const auto value = get_or<std::string>(*quantised, key, known);
    require(value == known, Code::kInvalid, "io: ", path, ": quantization_config's ", key, " is '",
            value, "'; known: ", known, "; ", kOther);
  };
  is("quant_method", "fp8");
  is("fmt", "e4m3");
  is("activation_scheme", "dynamic");
  const Json* size = find(*quantised, "weight_block_size");
  const bool pair = size && size->is_array() && size->get_array().size() == 2 &&
                    std::ranges::all_of(size->get_array(), [](const Json& x) {
                      return x.is_int64() && x.get_int64() > 0;
                    });
  require(pair, Code::kInvalid, "io: ", path, ": quantization_config's weight_block_size is ",
          size ? boost::json::serialize(*size) : "missing",
          ", it must be two numbers of at least 1; ", kOther);
  return {size->get_array()[0].get_int64(), size->get_array()[1].get_int64()};
}

std::array<float, 256> all_bytes() {
  std::array<float, 256> out{};
  for (size_t i = 0; i < out.size(); ++i) out[i] = e4m3_value(static_cast<uint8_t>(i));
  return out;
}

// Reads, from a tensor of F32 or BF16, `count` values from the one of number `begin` on.
std::vector<float> values_of(const StoredTensor& tensor, int64_t begin, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  if (tensor.dtype == Dtype::kF32) {
    tensor.read(std::as_writable_bytes(std::span(out)), begin * 4);
    return out;
  }
  std::vector<uint16_t> upper(out.size());
  tensor.read(std::as_writable_bytes(std::span(upper)), begin * 2);
  std::ranges::transform(upper, out.begin(),
                         [](uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); });
  return out;
}

StoredTensor::Reader in_f32(StoredTensor weight, StoredTensor factors, BlockSize block) {
  return [weight = std::move(weight), factors = std::move(factors), block](
             int64_t offset, std::span<std::byte> out) {
    static const std::array<float, 256> values = all_bytes();
    const int64_t columns = weight.shape[1], across = factors.shape[1];
    const int64_t begin = offset / 4, count = std::ssize(out) / 4;
    std::vector<std::byte> raw(static_cast<size_t>(count));
    weight.read(raw, begin);
    const int64_t first = begin / columns / block.rows,
                  last = (begin + count - 1) / columns / block.rows;
    const std::vector<float> scales =
        values_of(factors, first * across, (last - first + 1) * across);
    for (int64_t i = 0; i < count;) {  // the part of a row that one block has
      const int64_t row = (begin + i) / columns, column = (begin + i) % columns;
      const int64_t end = std::min(columns, (column / block.columns + 1) * block.columns);
      const float scale =
          scales[static_cast<size_t>((row / block.rows - first) * across + column / block.columns)];
      for (const int64_t stop = std::min(count, i + end - column); i < stop; ++i) {
        const float value = values[std::to_integer<size_t>(raw[static_cast<size_t>(i)])] * scale;
        std::memcpy(out.data() + 4 * i, &value, 4);
      }
    }
  };
}

}  // namespace

float e4m3_value(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float sign = bits & 0x80 ? -1.0F : 1.0F;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -9);
  return sign * std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
}

void dequantise_fp8(Checkpoint::Source& source) {
  std::vector<std::string> quantised;
  for (const auto& [name, tensor] : source.tensors) {
    if (tensor.dtype == Dtype::kF8E4M3) quantised.push_back(name);
  }
  if (quantised.empty()) return;
  const std::string path = source.path.string();
  const BlockSize block = read_block(source.config(), path);
  for (const std::string& name : quantised) {
    StoredTensor& tensor = source.tensors.at(name);
    const auto factors = source.tensors.find(name + std::string(kFactors));
    require(factors != source.tensors.end(), Code::kInvalid, "io: ", path, ": tensor '", name,
            "' is F8_E4M3, but there is no '", name, kFactors, "'; ", kFetch);
    const StoredTensor& scales = factors->second;
    require(tensor.shape.size() == 2 && tensor.num_bytes() > 0, Code::kInvalid, "io: ", path,
            ": tensor '", name, "' is F8_E4M3 of shape ", shape_text(tensor.shape),
            ", it must be a matrix; ", kOther);
    const std::vector<int64_t> want{blocks_of(tensor.shape[0], block.rows),
                                    blocks_of(tensor.shape[1], block.columns)};
    const bool fits = scales.dtype == Dtype::kF32 || scales.dtype == Dtype::kBF16;
    require(fits && scales.shape == want, Code::kInvalid, "io: ", path, ": tensor '", scales.name,
            "' is ", name_of(scales.dtype), " of shape ", shape_text(scales.shape),
            ", it must be F32 or BF16 of shape ", shape_text(want), " for '", name, "' of shape ",
            shape_text(tensor.shape), " in blocks of ", block.rows, " x ", block.columns, "; ",
            kFetch);
    tensor.reader = in_f32(tensor, scales, block);
    tensor.dtype = Dtype::kF32;
    tensor.dequantised = true;
    require(bytes_of(Dtype::kF32, tensor.shape).has_value(), Code::kInvalid, "io: ", path,
            ": tensor '", name, "' is too large as F32; ", kOther);
    source.tensors.erase(factors);
  }
  source.end_quantised();
}

}  // namespace twinkle
