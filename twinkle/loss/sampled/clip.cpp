#include "twinkle/loss/sampled/clip.h"

#include <algorithm>
#include <cmath>

#include "twinkle/loss/options.h"
#include "twinkle/loss/rows.h"

namespace twinkle::loss {
namespace {

struct Bounds {
  double low = 0.8, high = 1.2;

  static constexpr auto fields() {
    return std::tuple{option("clip_low_threshold", &Bounds::low, any(), "of the ratio"),
                      option("clip_high_threshold", &Bounds::high, any(), "of the ratio")};
  }
};

Bounds parse(const Json& json, std::string_view loss) {
  const auto b = parsed<Bounds>(json, loss);
  require(b.low >= 0 && b.high >= b.low && std::isfinite(b.high), Code::kInvalid, "loss: ", loss,
          ": clip_low_threshold is ", b.low, " and clip_high_threshold ", b.high,
          "; they bound the ratio, the first must be at least 0 and at most the second");
  return b;
}

// Checks the rows that count.
void check_rows(const ClippedRows& rows, const std::vector<double>& weights,
                std::string_view loss) {
  for (size_t i = 0; i < rows.low.size(); ++i) {
    const double low = rows.low[i], high = rows.high[i];
    if (weights[i] == 0) continue;
    require(low >= 0 && high >= low && std::isfinite(high), Code::kInvalid, "loss: ", loss,
            ": clip_low_threshold is ", low, " and clip_high_threshold ", high, " at row ", i,
            "; they bound the ratio, the first must be at least 0 and at most the second");
  }
}

}  // namespace

double ClippedRows::ratio(size_t row, double logprob) const { return std::exp(logprob - old[row]); }

double ClippedRows::clipped(size_t row, double ratio) const {
  return std::min(std::max(ratio, low[row]), high[row]);
}

void check_clip(const Json& options, std::string_view loss) { parse(options, loss); }

ClippedRows clipped_rows(const Inputs& in, const Json& options, std::string_view loss) {
  const Bounds b = parse(options, loss);
  ClippedRows rows{.old = doubles(in, "logprobs", 0),
                   .advantages = doubles(in, "advantages", 0),
                   .low = doubles(in, "clip_low_threshold", b.low),
                   .high = doubles(in, "clip_high_threshold", b.high)};
  check_rows(rows, doubles(in.weights), loss);
  return rows;
}

}  // namespace twinkle::loss
