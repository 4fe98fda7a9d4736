// Stored tensors as torch's, and back.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "twinkle/io/checkpoint.h"
#include "twinkle/io/tensor_view.h"
#include "twinkle/model/weight_memory.h"

namespace twinkle::model {

// Tensor `name`, not read yet. Error kInvalid: it is missing, or its shape is not `shape`.
const StoredTensor& stored_of(const Checkpoint& checkpoint, const std::string& name,
                              const std::vector<int64_t>& shape);

// A copy of it in `dtype`. Error kInvalid: as stored_of; its type is no float type, it holds NaN or
// infinity. `memory` provides the storage; null: the tensor allocates its own.
at::Tensor tensor_of(const Checkpoint& checkpoint, const std::string& name,
                     const std::vector<int64_t>& shape, at::ScalarType dtype,
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
