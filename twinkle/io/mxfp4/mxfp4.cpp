#include "twinkle/io/mxfp4/mxfp4.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle {
namespace {

constexpr std::string_view kBlocks = "_blocks", kScales = "_scales";
constexpr int64_t kGroup = 32, kBlockBytes = 16;

using Table = std::array<std::array<uint16_t, 16>, 256>;  // by scale and bits

const Table& all_values() {
  static const Table table = [] {
    Table out{};
    for (size_t scale = 0; scale < out.size(); ++scale) {
      for (size_t bits = 0; bits < 16; ++bits)
        out[scale][bits] = mxfp4_value(static_cast<uint8_t>(bits), static_cast<uint8_t>(scale));
    }
    return out;
  }();
  return table;
}

using Matrix = std::shared_ptr<const std::vector<uint16_t>>;

// The one matrix of a checkpoint that is being read piece by piece.
struct Kept {
  std::mutex mutex;
  const void* of = nullptr;
  int64_t index = 0;
  Matrix matrix;
};

// The matrices [in, out] of a pair, each of which can be had only whole: their rows are spread over
// all blocks. One of which a piece is read is kept until its last piece, or another one's, is.
class Matrices {
 public:
  Matrices(StoredTensor blocks, StoredTensor scales, std::shared_ptr<Kept> kept)
      : blocks_(std::move(blocks)), scales_(std::move(scales)), kept_(std::move(kept)) {}

  int64_t inputs() const { return blocks_.shape[2] * kGroup; }
  int64_t outputs() const { return blocks_.shape[1]; }

  void read(int64_t offset, std::span<std::byte> out) const {
    const int64_t size = 2 * inputs() * outputs();  // bytes of a matrix
    while (!out.empty()) {
      const int64_t index = offset / size, within = offset % size;
      const auto count = static_cast<size_t>(std::min<int64_t>(size - within, std::ssize(out)));
      const int64_t end = within + static_cast<int64_t>(count);
      const bool whole = within == 0 && end == size;
      const Matrix matrix = whole ? decoded(index) : matrix_of(index, end == size);
      std::memcpy(out.data(), reinterpret_cast<const std::byte*>(matrix->data()) + within, count);
      out = out.subspan(count), offset += static_cast<int64_t>(count);
    }
  }

 private:
  Matrix matrix_of(int64_t index, bool is_last_piece) const {
    const std::lock_guard lock(kept_->mutex);
    const bool is_kept = kept_->of == this && kept_->index == index;
    const Matrix found = is_kept && kept_->matrix ? kept_->matrix : decoded(index);
    kept_->of = this, kept_->index = index;
    kept_->matrix = is_last_piece ? nullptr : found;
    return found;
  }

  Matrix decoded(int64_t index) const {
    const Table& values = all_values();
    const int64_t outputs = this->outputs(), groups = blocks_.shape[2], num = outputs * groups;
    std::vector<uint8_t> bytes(static_cast<size_t>(num * kBlockBytes)), scales(num);
    blocks_.read(std::as_writable_bytes(std::span(bytes)), index * std::ssize(bytes));
    scales_.read(std::as_writable_bytes(std::span(scales)), index * num);
    auto out = std::make_shared<std::vector<uint16_t>>(static_cast<size_t>(num * kGroup));
    for (int64_t group = 0; group < groups; ++group) {  // 32 rows at a time
      uint16_t* to = out->data() + group * kGroup * outputs;
      for (int64_t o = 0; o < outputs; ++o, ++to) {
        const int64_t block = o * groups + group;
        const uint8_t* from = bytes.data() + block * kBlockBytes;
        const auto& value = values[scales[static_cast<size_t>(block)]];
        for (int64_t i = 0; i < kBlockBytes; ++i) {
          to[2 * i * outputs] = value[from[i] & 15];
          to[(2 * i + 1) * outputs] = value[from[i] >> 4];
        }
      }
    }
    return out;
  }

  const StoredTensor blocks_, scales_;
  const std::shared_ptr<Kept> kept_;
};

void check_pair(const StoredTensor& blocks, const StoredTensor& scales, const std::string& path) {
  constexpr const char* kRemedy = ": they are not of one model, fetch both again";
  const auto& shape = blocks.shape;
  require(blocks.dtype == Dtype::kU8 && shape.size() == 4 && shape[3] == kBlockBytes &&
              blocks.num_bytes() > 0,
          Code::kInvalid, "io: ", path, ": tensor '", blocks.name, "' is ", name_of(blocks.dtype),
          " of shape ", shape_text(shape),
          ", it must be U8 [experts, outputs, inputs / 32, 16]: fetch it again");
  const std::vector<int64_t> want(shape.begin(), shape.begin() + 3);
  require(scales.dtype == Dtype::kU8 && scales.shape == want, Code::kInvalid, "io: ", path,
          ": tensor '", scales.name, "' is ", name_of(scales.dtype), " of shape ",
          shape_text(scales.shape), ", it must be U8 of shape ", shape_text(want), " for '",
          blocks.name, "' of shape ", shape_text(shape), kRemedy);
  const auto size = bytes_of(Dtype::kBF16, std::vector<int64_t>{shape[0], shape[1], shape[2], 32});
  require(size.has_value(), Code::kInvalid, "io: ", path, ": tensor '", blocks.name,
          "' is too large as BF16");
}

// The names with blocks or scales, without their end; each has both.
std::set<std::string> stems_in(const Checkpoint::Source& source) {
  std::set<std::string> out;
  for (const auto& [name, tensor] : source.tensors) {
    for (const auto& [end, other] : {std::pair(kBlocks, kScales), std::pair(kScales, kBlocks)}) {
      if (!name.ends_with(end)) continue;
      const std::string stem(name, 0, name.size() - end.size());
      const std::string half = stem + std::string(other);
      require(source.tensors.contains(half), Code::kInvalid, "io: ", source.path.string(),
              ": tensor '", name, "' is there, but not '", half, "': fetch the checkpoint again");
      out.insert(stem);
    }
  }
  return out;
}

bool is_mxfp4(const Json& config) {
  const Json* quantised = find(config, "quantization_config");
  return quantised && get_or<std::string>(config, "model_type", "") == "gpt_oss" &&
         get_or<std::string>(*quantised, "quant_method", "") == "mxfp4";
}

}  // namespace

uint16_t mxfp4_value(uint8_t bits, uint8_t scale) {
  constexpr std::array<float, 8> kValues{0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
  float value = std::ldexp(kValues[bits & 7], scale - 127);
  if (scale == 255) value = std::numeric_limits<float>::quiet_NaN();
  if (bits & 8) value = -value;
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
}

void dequantise_mxfp4(Checkpoint::Source& source) {
  const bool any = std::ranges::any_of(source.tensors, [](const auto& tensor) {
    return tensor.first.ends_with(kBlocks) || tensor.first.ends_with(kScales);
  });
  if (!any || !is_mxfp4(source.config())) return;
  const std::string path = source.path.string();
  const auto kept = std::make_shared<Kept>();
  for (const std::string& stem : stems_in(source)) {
    const std::string blocks_name = stem + std::string(kBlocks),
                      scales_name = stem + std::string(kScales);
    require(!source.tensors.contains(stem), Code::kInvalid, "io: ", path, ": tensor '", stem,
            "' is there twice, and as '", blocks_name, "': fetch the checkpoint again");
    const StoredTensor &blocks = source.tensors.at(blocks_name),
                       &scales = source.tensors.at(scales_name);
    check_pair(blocks, scales, path);
    const auto matrices = std::make_shared<const Matrices>(blocks, scales, kept);
    StoredTensor whole{.name = stem,
                       .dtype = Dtype::kBF16,
                       .shape = {blocks.shape[0], matrices->inputs(), matrices->outputs()},
                       .reader = [matrices](int64_t offset, std::span<std::byte> out) {
                         matrices->read(offset, out);
                       }};
    source.tensors.erase(blocks_name);
    source.tensors.erase(scales_name);
    source.add(std::move(whole));
  }
  source.end_quantised();
}

}  // namespace twinkle
