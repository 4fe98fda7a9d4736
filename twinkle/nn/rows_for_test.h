// For tests: packed sequences, and for each its adapter's slot, its key, and whether it learns.
#pragma once
#include <vector>

#include "twinkle/nn/rows.h"

namespace twinkle::nn {

inline Rows rows_of(const std::vector<int64_t>& lengths, const std::vector<int32_t>& slots,
                    const std::vector<uint64_t>& keys, const std::vector<uint8_t>& learn) {
  Rows out = pack(lengths);
  for (size_t s = 0; s < lengths.size(); ++s) out.segments[s] = {slots[s], keys[s], learn[s] != 0};
  return out;
}

}  // namespace twinkle::nn
