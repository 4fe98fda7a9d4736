#include "twinkle/model/tensors.h"

#include <ATen/ATen.h>

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

// The mapped bytes need not be aligned, so they are copied before they are converted.
at::Tensor copy_of(const TensorView& view, WeightMemory* memory = nullptr) {
  const at::ScalarType type = scalar_type(view.dtype, view.name);
  at::Tensor out = memory ? memory->empty(view.shape, type) : at::empty(view.shape, type);
  std::memcpy(out.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
  return out;
}

}  // namespace

at::Tensor tensor_of(const Checkpoint& checkpoint, const std::string& name,
                     const std::vector<int64_t>& shape, at::ScalarType dtype,
                     WeightMemory* memory) {
  require(checkpoint.contains(name), Code::kInvalid, "model: ", checkpoint.path().string(),
          " has no tensor ", name, ", which config.json asks for");
  const TensorView view = checkpoint.at(name);
  require(view.shape == shape, Code::kInvalid, "model: tensor ", name, " has shape ",
          shape_text(view.shape), ", config.json asks for ", shape_text(shape));
  if (scalar_type(view.dtype, name) == dtype) return copy_of(view, memory);
  const at::Tensor converted = copy_of(view).to(dtype);
  return memory ? memory->empty(shape, dtype).copy_(converted) : converted;
}

at::Tensor to_float32(const TensorView& view) { return copy_of(view).to(at::kFloat); }

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
  view.bytes = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
  return view;
}

}  // namespace twinkle::model
