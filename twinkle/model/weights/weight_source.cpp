#include "twinkle/model/weights/weight_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::model {
namespace {

constexpr const char* kRemedy = "; they are not of one model: fetch both again";

// True if any of n words has all bits of its exponent set, which is NaN or infinity.
template <class Word>
bool has_full_exponent(const void* data, int64_t n, Word exponent) {
  const auto* words = static_cast<const Word*>(data);
  Word found = 0;
  for (int64_t i = 0; i < n; ++i) found |= static_cast<Word>((words[i] & exponent) == exponent);
  return found != 0;
}

bool is_finite(const at::Tensor& t) {
  const void* data = t.const_data_ptr();
  switch (t.scalar_type()) {
    case at::kFloat:
      return !has_full_exponent<uint32_t>(data, t.numel(), 0x7F800000);
    case at::kBFloat16:
      return !has_full_exponent<uint16_t>(data, t.numel(), 0x7F80);
    case at::kHalf:
      return !has_full_exponent<uint16_t>(data, t.numel(), 0x7C00);
    default:
      return at::isfinite(t).all().item<bool>();
  }
}

bool is_float(Dtype type) {
  return type == Dtype::kF32 || type == Dtype::kF16 || type == Dtype::kBF16 || type == Dtype::kF64;
}

// Tensors of one size and type, one after the other, as one.
StoredTensor joined(const std::string& name, const std::vector<int64_t>& shape,
                    std::vector<StoredTensor> parts, const std::string& file) {
  StoredTensor out{.name = name, .dtype = parts.front().dtype, .shape = shape};
  for (const StoredTensor& part : parts) {
    require(part.dtype == out.dtype, Code::kInvalid, "model: tensor ", part.name, " of ", file,
            " is ", name_of(part.dtype), ", and ", parts.front().name, " is ", name_of(out.dtype),
            "; the parts of one weight must have one type: save the checkpoint again in one");
  }
  const int64_t size = parts.front().num_bytes();
  out.reader = [size, parts = std::move(parts)](int64_t offset, std::span<std::byte> into) {
    while (!into.empty()) {
      const int64_t within = offset % size, count = std::min<int64_t>(size - within, into.size());
      const auto now = into.first(static_cast<size_t>(count));
      parts[static_cast<size_t>(offset / size)].read(now, within);
      into = into.subspan(now.size()), offset += count;
    }
  };
  return out;
}

}  // namespace

WeightSource::WeightSource(Checkpoint checkpoint, at::ScalarType dtype,
                           std::vector<std::string> zeros, Layout layout)
    : checkpoint_(std::move(checkpoint)),
      dtype_(dtype),
      zeros_(std::move(zeros)),
      layout_(std::move(layout)) {}

bool WeightSource::equal(const std::string& a, const std::string& b) const {
  return equal_bytes(checkpoint_.at(a), checkpoint_.at(b));
}

bool WeightSource::is_zero(const std::string& name) const {
  return std::ranges::find(zeros_, name) != zeros_.end() && !contains(name);
}

at::ScalarType WeightSource::dtype_of(const std::string& name) const {
  return dtype_ == at::kBFloat16 && layout_.is_in_float32(name) ? at::kFloat : dtype_;
}

std::vector<std::string> WeightSource::tensors_of(const std::string& name,
                                                  const std::vector<int64_t>& shape) const {
  if (contains(name)) return {name};
  return shape.size() == 3 ? layout_.parts_of(name, shape[0]) : std::vector<std::string>();
}

StoredTensor WeightSource::stored(const std::string& name,
                                  const std::vector<int64_t>& shape) const {
  const std::vector<std::string> names = tensors_of(name, shape);
  if (names.empty() || names[0] == name) return of_shape(name, shape);
  const int64_t parts = std::ssize(names) / shape[0];  // matrices of each stack
  std::vector<StoredTensor> out;
  for (const std::string& part : names) out.push_back(of_shape(part, {shape[1] / parts, shape[2]}));
  return joined(name, shape, std::move(out), checkpoint_.path().string());
}

const StoredTensor& WeightSource::of_shape(const std::string& name,
                                           const std::vector<int64_t>& shape) const {
  require(contains(name), Code::kInvalid, "model: ", checkpoint_.path().string(), " has no tensor ",
          name, ", which config.json asks for", kRemedy);
  const StoredTensor& found = checkpoint_.at(name);
  require(is_float(found.dtype), Code::kInvalid, "model: tensor ", name, " of ",
          checkpoint_.path().string(), " is ", name_of(found.dtype),
          "; weights are F32, F16, BF16 or F64: save the checkpoint again in one of these");
  require(found.shape == shape, Code::kInvalid, "model: tensor ", name, " of ",
          checkpoint_.path().string(), " has shape ", shape_text(found.shape),
          ", config.json asks for ", shape_text(shape), kRemedy);
  return found;
}

void WeightSource::check(const std::string& name, const std::vector<int64_t>& shape) const {
  if (!is_zero(name)) stored(name, shape);
}

at::Tensor WeightSource::read(const std::string& name, const std::vector<int64_t>& shape,
                              const TensorSlice& slice, WeightMemory* memory) const {
  if (is_zero(name)) return at::zeros(slice.shape_in(shape), dtype_);
  return taken(stored(name, shape), slice, memory);
}

at::Tensor WeightSource::read_run(const std::string& name, const std::vector<int64_t>& shape,
                                  int64_t begin, int64_t end) const {
  if (is_zero(name)) return at::zeros({end - begin}, dtype_);
  StoredTensor flat = stored(name, shape);
  flat.shape = {flat.num_bytes() / size_of(flat.dtype)};
  return taken(flat, {0, begin, end}, nullptr);
}

at::Tensor WeightSource::taken(const StoredTensor& from, const TensorSlice& slice,
                               WeightMemory* memory) const {
  const at::ScalarType dtype = dtype_of(from.name);
  const bool converts = scalar_type_of(from) != dtype;
  const at::Tensor taken = read_tensor(from, slice, converts ? nullptr : memory);
  require(is_finite(taken), Code::kInvalid, "model: tensor ", from.name, " of ",
          checkpoint_.path().string(), " holds NaN or infinity; fetch the checkpoint again");
  if (!converts) return taken;
  const at::Tensor converted = taken.to(dtype);
  return memory ? memory->empty(converted.sizes(), dtype).copy_(converted) : converted;
}

}  // namespace twinkle::model
