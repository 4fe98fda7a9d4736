// Direct reward optimization (Richemond et al. 2024, arXiv 2405.19107), with the advantage in place
// of reward and value: the sum over rows of -(A log p - beta / 2 (log p - logprobs)^2). Tinker's
// loss of this name. Extras per row: logprobs, advantages. Options: beta (default 0.05), at least
// 0.
#include "twinkle/loss/options.h"
#include "twinkle/loss/reduce.h"
#include "twinkle/loss/rows.h"

namespace twinkle::loss {
namespace {

struct Options {
  double beta = 0.05;

  static constexpr auto fields() {
    return std::tuple{option("beta", &Options::beta, at_least(0), "of the squared gap")};
  }
};

double parse_beta(const Json& json) { return parsed<Options>(json, "dro").beta; }

RowLoss make(const Inputs& in, const Json& json) {
  return {.term = [beta = parse_beta(json), old = doubles(in, "logprobs", 0),
                   advantages = doubles(in, "advantages", 0)](int64_t row, double logprob) -> Term {
            const auto t = static_cast<size_t>(row);
            const double gap = logprob - old[t];
            return {-advantages[t] * logprob + beta / 2 * gap * gap, -advantages[t] + beta * gap};
          },
          .num_tokens = num_scored(in.weights)};
}

}  // namespace

Loss dro() {
  return of_rows<make>({.name = "dro",
                        .class_name = "dro",
                        .extras = {{.name = "logprobs"}, {.name = "advantages"}},
                        .check = checked<parse_beta>});
}

}  // namespace twinkle::loss
