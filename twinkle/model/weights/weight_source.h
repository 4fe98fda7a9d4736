// The weights of a model by name: the one way by which they come out of a checkpoint's files, whole
// or in slices. Knows no model: whoever asks for a weight says its shape. A weight that the
// files hold in parts (layout.h) is read from these, as if they were one tensor. A value; any
// thread may read.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "twinkle/io/checkpoint.h"
#include "twinkle/model/weights/layout.h"
#include "twinkle/model/weights/tensors.h"
#include "twinkle/model/weights/weight_memory.h"

namespace twinkle::model {

class WeightSource {
 public:
  // Gives weights in `dtype`; where that is bfloat16, those that the layout says in float32.
  // `zeros`: names of weights that are zero where the checkpoint has no such tensor. Names are the
  // checkpoint's: the layout's renames do not count here.
  WeightSource(Checkpoint checkpoint, at::ScalarType dtype, std::vector<std::string> zeros = {},
               Layout layout = {});

  const std::vector<std::string>& names() const { return checkpoint_.names(); }
  bool contains(const std::string& name) const { return checkpoint_.contains(name); }
  at::ScalarType dtype() const { return dtype_; }
  // True if both tensors have one type and the same bytes. Error kNotFound: one is not there.
  bool equal(const std::string& a, const std::string& b) const;

  // Reads nothing. Error kInvalid: there is no such weight, or its shape is not `shape`.
  void check(const std::string& name, const std::vector<int64_t>& shape) const;

  // The tensors that the weight is read from; none: it is zero, or not there.
  std::vector<std::string> tensors_of(const std::string& name,
                                      const std::vector<int64_t>& shape) const;

  // A copy of a slice of weight `name`, whose whole shape is `shape`; nothing else is read.
  // `memory` provides the storage; null: the tensor allocates its own. Error kInvalid: as check;
  // the type is no float type; the slice holds NaN or infinity.
  at::Tensor read(const std::string& name, const std::vector<int64_t>& shape,
                  const TensorSlice& slice = {}, WeightMemory* memory = nullptr) const;
  // Elements [begin, end) of the weight in row-major order, [end - begin]. Errors: as read.
  at::Tensor read_run(const std::string& name, const std::vector<int64_t>& shape, int64_t begin,
                      int64_t end) const;

 private:
  at::Tensor taken(const StoredTensor& from, const TensorSlice& slice, WeightMemory* memory) const;
  bool is_zero(const std::string& name) const;
  at::ScalarType dtype_of(const std::string& name) const;
  StoredTensor stored(const std::string& name, const std::vector<int64_t>& shape) const;
  const StoredTensor& of_shape(const std::string& name, const std::vector<int64_t>& shape) const;

  Checkpoint checkpoint_;
  at::ScalarType dtype_;
  std::vector<std::string> zeros_;
  Layout layout_;
};

}  // namespace twinkle::model
