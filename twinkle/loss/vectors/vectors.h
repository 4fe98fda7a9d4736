// Losses of vectors, of which each label or each sequence has one: logits, embeddings. Autograd
// differentiates them, in double; their sums have one order, whatever the number of threads. Knows
// no model. One loss is one file here and one line in vectors.def.
#pragma once
#include <ATen/ATen.h>

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle::loss {

struct OfVectors {
  double loss = 0;
  at::Tensor grad;  // d loss / d vectors, of their shape and type
};

// [N, ...] of what else a loss reads; it says of what type.
using VectorExtras = std::map<std::string, at::Tensor>;

struct VectorLoss {
  std::string_view class_name;         // "GKDLoss": as scripts name it
  Json (*options)();                   // as Loss::options
  void (*check)(const Json& options);  // as Loss::check
  // vectors [N, D] float32 or float64 on the CPU. Error kInvalid: options or extras that the loss
  // cannot take.
  OfVectors (*run)(const at::Tensor& vectors, const VectorExtras& extras, const Json& options);
};

const std::vector<VectorLoss>& vector_losses();
// Error kInvalid: unknown.
const VectorLoss& find_vectors(std::string_view class_name);

}  // namespace twinkle::loss
