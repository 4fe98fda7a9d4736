// Importance sampling: the sum over rows of -r A, r = exp(log p - logprobs) being the ratio to the
// policy that sampled the row, A its advantage. Tinker's loss of this name.
// Extras per row: logprobs, advantages. No options.
#include <cmath>

#include "twinkle/loss/options.h"
#include "twinkle/loss/reduce.h"
#include "twinkle/loss/rows.h"

namespace twinkle::loss {
namespace {

RowLoss make(const Inputs& in, const Json&) {
  return {.term = [old = doubles(in, "logprobs", 0), advantages = doubles(in, "advantages", 0)](
                      int64_t row, double logprob) -> Term {
            const auto t = static_cast<size_t>(row);
            const double each = -std::exp(logprob - old[t]) * advantages[t];
            return {each, each};
          },
          .num_tokens = num_scored(in.weights)};
}

}  // namespace

Loss importance_sampling() {
  return of_rows<make>(
      {.name = "importance_sampling",
       .class_name = "importance_sampling",
       .extras = {{.name = "logprobs"}, {.name = "advantages"}},
       .check = [](const Json& json) { set_options({}, json, "importance_sampling"); }});
}

}  // namespace twinkle::loss
