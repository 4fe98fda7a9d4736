#include "twinkle/loss/replies/preference.h"

#include <cmath>

#include "twinkle/loss/reduce.h"
#include "twinkle/loss/replies/pair_loss.h"

namespace twinkle::loss {

std::vector<double> Replies::means() const {
  std::vector<double> out;
  for (size_t s = 0; s < sums.size(); ++s) out.push_back(sums[s] / counts[s]);
  return out;
}

Replies replies_of(const Inputs& in, std::string_view loss, bool pairs) {
  const size_t n = in.cu_seqlens.size() - 1;
  require(!pairs || n % 2 == 0, Code::kInvalid, "loss: ", loss,
          " needs pairs, each chosen reply followed by its rejected one, but there are ", n,
          " sequences: pass an even number of them");
  Replies out{std::vector<double>(n), std::vector<double>(n)};
  const std::vector<double> logprobs = doubles(in.logprobs);
  const auto weights = elements(in.weights);
  for (size_t s = 0; s < n; ++s) {
    for (auto t = static_cast<size_t>(in.cu_seqlens[s]);
         t < static_cast<size_t>(in.cu_seqlens[s + 1]); ++t) {
      if (weights[t] == 0) continue;
      require(weights[t] == 1, Code::kInvalid, "loss: ", loss, " weighs no rows, but a weight is ",
              weights[t], ", it must be 0 or 1");
      out.sums[s] += logprobs[t];
      ++out.counts[s];
    }
    require(out.counts[s] > 0, Code::kInvalid, "loss: ", loss, " compares replies, but sequence ",
            s, " has no label: every reply must have one");
  }
  return out;
}

std::vector<double> reference_sums(const Inputs& in, std::string_view loss) {
  const bool sums = in.extras.contains("ref_sums"), rows = in.extras.contains("ref_logps");
  require(!sums || !rows, Code::kInvalid, "loss: ", loss,
          " has both 'ref_logps' and 'ref_sums', which mean the same; pass one of them");
  require(sums || rows, Code::kInvalid, "loss: ", loss,
          " needs 'ref_logps' or 'ref_sums', pass one with the batch");
  if (sums) return doubles(in.extras.at("ref_sums"));
  const std::vector<double> of_rows = doubles(in.extras.at("ref_logps"));
  std::vector<double> out;
  for (const std::vector<size_t>& scored : scored_rows(in)) {
    out.push_back(0);
    for (const size_t t : scored) out.back() += of_rows[t];
  }
  return out;
}

void add_chosen_nll(const Replies& replies, double coefficient, OfReplies& out) {
  out.grad.resize(replies.sums.size());
  double sum = 0, count = 0;
  for (size_t s = 0; s < replies.sums.size(); s += 2) {
    sum += replies.sums[s];
    count += replies.counts[s];
  }
  if (coefficient == 0 || count == 0) return;
  out.loss -= coefficient * sum / count;
  for (size_t s = 0; s < replies.sums.size(); s += 2) out.grad[s] -= coefficient / count;
}

void add_preferred(const std::vector<double>& margins, const std::vector<double>& slopes,
                   double coefficient, OfReplies& out) {
  out.grad.resize(slopes.size());
  const double each = coefficient / static_cast<double>(margins.size());
  for (size_t p = 0; p < margins.size(); ++p) {
    const Term of_pair = of_sigmoid(margins[p]);
    out.loss += each * of_pair.value;
    for (const size_t s : {2 * p, 2 * p + 1}) out.grad[s] += each * of_pair.grad * slopes[s];
  }
}

Output output_of(const Inputs& in, const OfReplies& of_replies) {
  const auto weights = elements(in.weights);
  std::vector<double> grad(weights.size());
  for (size_t s = 0; s + 1 < in.cu_seqlens.size(); ++s)
    for (auto t = static_cast<size_t>(in.cu_seqlens[s]);
         t < static_cast<size_t>(in.cu_seqlens[s + 1]); ++t)
      if (weights[t] != 0) grad[t] = of_replies.grad[s];
  return {.loss = of_replies.loss,
          .grad = gradient_of(in, grad),
          .num_tokens = weights.empty() ? 0.0 : 1.0};
}

}  // namespace twinkle::loss
