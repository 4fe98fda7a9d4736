#include "twinkle/model/weights/tensors.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>

#include "twinkle/base/error.h"

namespace twinkle::model {

std::vector<int64_t> TensorSlice::shape_in(std::vector<int64_t> shape) const {
  if (begin == 0 && end == -1) return shape;
  require(dim >= 0 && dim < std::ssize(shape), Code::kInternal, "model: a slice of dim ", dim,
          " of a tensor of shape ", shape_text(shape));
  int64_t& size = shape[static_cast<size_t>(dim)];
  const int64_t last = end == -1 ? size : end;
  require(begin >= 0 && begin <= last && last <= size, Code::kInternal, "model: a slice from ",
          begin, " to ", last, " of a dim of ", size);
  size = last - begin;
  return shape;
}

at::ScalarType scalar_type_of(const StoredTensor& stored) {
  switch (stored.dtype) {
    case Dtype::kF64:
      return at::kDouble;
    case Dtype::kF32:
      return at::kFloat;
    case Dtype::kF16:
      return at::kHalf;
    case Dtype::kBF16:
      return at::kBFloat16;
    default:
      fail(Code::kInvalid, "model: tensor ", stored.name, " is ", name_of(stored.dtype),
           "; weights are F32, F16, BF16 or F64");
  }
}

at::Tensor read_tensor(const StoredTensor& stored, const TensorSlice& slice, WeightMemory* memory) {
  const at::ScalarType type = scalar_type_of(stored);
  const std::vector<int64_t> shape = slice.shape_in(stored.shape);
  at::Tensor out = memory ? memory->empty(shape, type) : at::empty(shape, type);
  std::span<std::byte> left{static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()};
  if (left.empty()) return out;
  // The file holds the slice in runs, one for each index of the dims before its own.
  const auto before = shape.begin() + slice.dim;
  const int64_t runs = std::accumulate(shape.begin(), before, int64_t{1}, std::multiplies{});
  const size_t run = left.size() / static_cast<size_t>(runs);
  const int64_t stride = stored.num_bytes() / runs;
  int64_t offset = 0;  // where the next run begins
  if (slice.begin > 0) offset = static_cast<int64_t>(run) / *before * slice.begin;
  for (; !left.empty(); left = left.subspan(run), offset += stride)
    stored.read(left.first(run), offset);
  return out;
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

at::Tensor to_float32(const StoredTensor& stored) { return read_tensor(stored).to(at::kFloat); }

bool is_copy(const StoredTensor& copy, const StoredTensor& original) {
  constexpr int64_t kBlock = 1 << 18;  // elements
  if (copy.shape != original.shape) return false;
  const auto block = [](const StoredTensor& from, int64_t begin, int64_t count) {
    at::Tensor out = at::empty({count}, scalar_type_of(from));
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
