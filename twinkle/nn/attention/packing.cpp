#include "twinkle/nn/attention/packing.h"

#include <ATen/ops/empty.h>

#include <numeric>

#include "twinkle/base/error.h"

namespace twinkle::nn {

Packing pack(std::span<const int64_t> lengths) {
  Packing packing{.position_ids = {}, .cu_seqlens = {0}};
  for (const int64_t length : lengths) {
    require(length > 0, Code::kInvalid, "nn: sequence ", packing.num_sequences(), " has ", length,
            " tokens, it must have at least 1");
    packing.cu_seqlens.push_back(packing.cu_seqlens.back() + length);
  }
  packing.position_ids = at::empty({packing.num_tokens()}, at::kLong);
  int64_t* position = packing.position_ids.mutable_data_ptr<int64_t>();
  for (const int64_t length : lengths) {
    std::iota(position, position + length, 0);
    position += length;
  }
  return packing;
}

}  // namespace twinkle::nn
