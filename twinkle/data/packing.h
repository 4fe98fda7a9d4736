// Encoded rows put together into rows of nearly equal length.
#pragma once
#include <cstdint>
#include <vector>

#include "twinkle/data/dataset.h"

namespace twinkle::data {

// Indices of lengths whose sums are at most `limit`: each, the longest first, goes where the least
// room is left (best fit, decreasing). Bins by their first index, indices in order.
std::vector<std::vector<int64_t>> bins(const std::vector<int64_t>& lengths, int64_t limit);

// Rows of several samples, at most `limit` tokens each, of `chunk` rows at a time. A packed row has
// the samples' fields that have a value for each token behind each other, position_ids from 0 for
// each sample, and length. Error kInvalid: a row without input_ids, with none or more than `limit`
// of them, or with routed_experts, whose entries may be one fewer than its tokens.
Dataset packed(const Dataset& rows, int64_t limit, int64_t chunk);

}  // namespace twinkle::data
