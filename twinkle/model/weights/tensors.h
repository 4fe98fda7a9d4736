// Stored tensors as torch's, and back.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "twinkle/io/checkpoint.h"
#include "twinkle/io/tensor_view.h"
#include "twinkle/model/weights/weight_memory.h"

namespace twinkle::model {

// Indices [begin, end) of one dim, and all of the others. By default everything.
struct TensorSlice {
  int64_t dim = 0, begin = 0;
  int64_t end = -1;  // -1: the dim's end

  // Shape of the slice of a tensor of this shape. Error kInternal: it is not inside.
  std::vector<int64_t> shape_in(std::vector<int64_t> shape) const;
};

// Error kInvalid: the tensor's type is no float type.
at::ScalarType scalar_type_of(const StoredTensor& stored);

// A copy in its own type, straight from the file; what is not in the slice is not read. `memory`
// provides the storage; null: the tensor allocates its own. Error kInvalid: as scalar_type_of.
at::Tensor read_tensor(const StoredTensor& stored, const TensorSlice& slice = {},
                       WeightMemory* memory = nullptr);

// Any float tensor as float32.
at::Tensor to_float32(const StoredTensor& stored);

// True if each value of `copy` is that of `original` in copy's type; holds little of them at a
// time.
bool is_copy(const StoredTensor& copy, const StoredTensor& original);

// Writes the values of a float tensor into another, contiguous both and of one shape, in the type
// of the second. On the CPU it takes no memory and so cannot fail: what has begun to change ends
// changed.
void assign(const at::Tensor& from, const at::Tensor& to);

// Borrows the tensor's memory: contiguous, and alive as long as the view. Of a tensor on a device
// the view owns a copy.
TensorView view_of(const std::string& name, const at::Tensor& tensor);

}  // namespace twinkle::model
