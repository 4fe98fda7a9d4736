// The bounds of a ratio in Tinker's clipped losses: bounds of the ratio itself, not distances from
// 1. Options clip_low_threshold (0.8) and clip_high_threshold (1.2), or extras of these names, of
// each row.
#pragma once
#include <vector>

#include "twinkle/loss/loss.h"

namespace twinkle::loss {

// The inputs of a row of a clipped loss, besides its log-probability.
struct ClippedRows {
  std::vector<double> old, advantages, low, high;

  double ratio(size_t row, double logprob) const;
  double clipped(size_t row, double ratio) const;
};

// Error kInvalid: options that are not known; bounds that are negative, NaN or in the wrong order,
// of clipped_rows those of a row with a weight, too.
void check_clip(const Json& options, std::string_view loss);
ClippedRows clipped_rows(const Inputs& inputs, const Json& options, std::string_view loss);

inline const std::vector<Extra> kClippedExtras = {
    {.name = "logprobs"},
    {.name = "advantages"},
    {.name = "clip_low_threshold", .optional = true},
    {.name = "clip_high_threshold", .optional = true}};

}  // namespace twinkle::loss
