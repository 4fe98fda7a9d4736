#include "twinkle/model/tensors.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>

#include "twinkle/base/error.h"

namespace twinkle::model {
namespace {

at::ScalarType scalar_type(Dtype dtype, const std::string& name) {
  switch (dtype) {
    case Dtype::kF64:
      return at::kDouble;
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kF16:
      return at::kHalf;
    case Dtype::kBF16:
      return at::kBFloat16;
    default:
      fail(Code::kInvalid, "model: tensor ", name, " is ", name_of(dtype),
           "; weights are F32, F16, BF16 or F64");
  }
}

// Straight from the file into its place.
at::Tensor read(const StoredTensor& stored, WeightMemory* memory = nullptr) {
  const at::ScalarType type = scalar_type(stored.dtype, stored.name);
  at::Tensor out = memory ? memory->empty(stored.shape, type) : at::empty(stored.shape, type);
  stored.read({static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()});
  return out;
}

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

}  // namespace

const StoredTensor& stored_of(const Checkpoint& checkpoint, const std::string& name,
                              const std::vector<int64_t>& shape) {
  require(checkpoint.contains(name), Code::kInvalid, "model: ", checkpoint.path().string(),
          " has no tensor ", name, ", which config.json asks for");
  const StoredTensor& stored = checkpoint.at(name);
  require(stored.shape == shape, Code::kInvalid, "model: tensor ", name, " has shape ",
          shape_text(stored.shape), ", config.json asks for ", shape_text(shape));
  return stored;
}

at::Tensor tensor_of(const Checkpoint& checkpoint, const std::string& name,
                     const std::vector<int64_t>& shape, at::ScalarType dtype,
                     WeightMemory* memory) {
  const StoredTensor& stored = stored_of(checkpoint, name, shape);
  const auto check = [&](const at::Tensor& t) {
    require(is_finite(t), Code::kInvalid, "model: tensor ", name, " of ",
            checkpoint.path().string(), " holds NaN or infinity; fetch the checkpoint again");
    return t;
  };
  if (scalar_type(stored.dtype, name) == dtype) return check(read(stored, memory));
  const at::Tensor converted = check(read(stored)).to(dtype);
  return memory ? memory->empty(shape, dtype).copy_(converted) : converted;
}

void assign(const at::Tensor& from, const at::Tensor& to) {
  require(from.sizes() == to.sizes() && from.is_contiguous() && to.is_contiguous(), Code::kInternal,
          "model: assign: tensors of ", from.numel(), " and ", to.numel(),
          " elements must have one shape, and be contiguous");
  if (!from.is_cpu() || !to.is_cpu()) {
    to.copy_(from);
    return;
  }
  const auto dispatch = [](at::ScalarType type, auto&& with) {
    AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, type, "assign",
                                    [&] { with(scalar_t()); });
  };
  dispatch(from.scalar_type(), [&]<class From>(From) {
    dispatch(to.scalar_type(), [&]<class To>(To) {
      const From* source = from.const_data_ptr<From>();
      To* target = to.mutable_data_ptr<To>();
      at::parallel_for(0, to.numel(), 1 << 15, [=](int64_t begin, int64_t end) {
        std::transform(source + begin, source + end, target + begin,
                       [](From x) { return static_cast<To>(x); });
      });
    });
  });
}

at::Tensor to_float32(const StoredTensor& stored) { return read(stored).to(at::kFloat); }

bool is_copy(const StoredTensor& copy, const StoredTensor& original) {
  constexpr int64_t kBlock = 1 << 18;  // elements
  if (copy.shape != original.shape) return false;
  const auto block = [](const StoredTensor& from, int64_t begin, int64_t count) {
    at::Tensor out = at::empty({count}, scalar_type(from.dtype, from.name));
    from.read({static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()},
              begin * size_of(from.dtype));
    return out;
  };
  const int64_t n = copy.num_bytes() / size_of(copy.dtype);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t count = std::min(kBlock, n - begin);
    const at::Tensor mine = block(copy, begin, count);
    const at::Tensor theirs = block(original, begin, count).to(mine.scalar_type());
    if (std::memcmp(mine.const_data_ptr(), theirs.const_data_ptr(), mine.nbytes()) != 0)
      return false;
  }
  return true;
}

TensorView view_of(const std::string& name, const at::Tensor& tensor) {
  TensorView view;
  view.name = name;
  switch (tensor.scalar_type()) {
    case at::kFloat:
      view.dtype = Dtype::kF32;
      break;
    case at::kBFloat16:
      view.dtype = Dtype::kBF16;
      break;
    case at::kDouble:
      view.dtype = Dtype::kF64;
      break;
    case at::kLong:
      view.dtype = Dtype::kI64;
      break;
    default:
      fail(Code::kInternal, "model: cannot write ", name, " of type ",
           c10::toString(tensor.scalar_type()));
  }
  view.shape = tensor.sizes().vec();
  const at::Tensor host = tensor.cpu();  // the tensor itself if it is there
  view.bytes = {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()};
  if (!tensor.is_cpu()) view.owner = std::make_shared<at::Tensor>(host);
  return view;
}

}  // namespace twinkle::model
