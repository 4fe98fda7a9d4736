#include "twinkle/nn/head/row_targets.h"

#include <ATen/ATen.h>

#include <cmath>
#include <map>

namespace twinkle::nn {
namespace {

using kernels::RowStats;

// Entries of a chunk of logits.
struct Entries {
  std::vector<int64_t> rows, ids;

  void add(int64_t row, int32_t id) {
    rows.push_back(row);
    ids.push_back(id);
  }
  c10::List<std::optional<at::Tensor>> index(at::Device device) const {
    const auto on = [&](const std::vector<int64_t>& values) {
      return std::optional<at::Tensor>(at::tensor(values, at::kLong).to(device));
    };
    return {on(rows), on(ids)};
  }
};

}  // namespace

RowTargets::RowTargets(const Targets& all) : ids_(all.ids) {
  for (size_t i = 0; i < all.rows.size(); ++i) {
    if (i > 0 && all.rows[i] == all.rows[i - 1]) continue;
    first_.push_back(static_cast<int64_t>(i));
    lead_.rows.push_back(all.rows[i]);
    lead_.ids.push_back(all.ids[i]);
    if (!all.temperature.empty()) lead_.temperature.push_back(all.temperature[i]);
  }
  first_.push_back(std::ssize(all.rows));
}

float RowTargets::temperature(int64_t row) const {
  return lead_.temperature.empty() ? 1 : lead_.temperature[static_cast<size_t>(row)];
}

void RowTargets::append(int64_t begin, const at::Tensor& logits, std::span<const RowStats> stats,
                        bool entropy, HeadOutput& out) const {
  Entries others;
  const auto each = [&](const auto& other) {
    for (int64_t r = 0; r < logits.size(0); ++r)
      for (int64_t i = first(begin + r) + 1; i < first(begin + r + 1); ++i)
        other(r, ids_[static_cast<size_t>(i)]);
  };
  each([&](int64_t r, int32_t id) { others.add(r, id); });
  at::Tensor picked;  // [others, 1]
  if (!others.rows.empty())
    picked = logits.index(others.index(logits.device())).unsqueeze(1).cpu().contiguous();
  for (int64_t r = 0, other = 0; r < logits.size(0); ++r) {
    const RowStats& of_row = stats[static_cast<size_t>(r)];
    for (int64_t i = first(begin + r); i < first(begin + r + 1); ++i) {
      const double logprob =
          i == first(begin + r)
              ? of_row.logprob
              : kernels::softmax_logprob(picked, other++, 0, temperature(begin + r), of_row);
      out.logprobs.push_back(static_cast<float>(logprob));
      if (entropy) out.entropies.push_back(static_cast<float>(of_row.entropy));
    }
  }
}

void RowTargets::logits_grad_(int64_t begin, at::Tensor& logits, std::span<const RowStats> stats,
                              std::span<const float> logprobs, std::span<const float> grad,
                              std::span<const float> entropy_grad) const {
  const auto size = static_cast<size_t>(logits.size(0)), from = static_cast<size_t>(begin);
  std::vector<float> of_rows(size), of_entropies(entropy_grad.empty() ? 0 : size);
  Entries several;
  std::vector<double> values;
  for (size_t r = 0; r < size; ++r) {
    const auto lo = static_cast<size_t>(first_[from + r] - first_[from]),
               hi = static_cast<size_t>(first_[from + r + 1] - first_[from]);
    const auto sum = [&](std::span<const float> x) {
      float out = x[lo];
      for (size_t i = lo + 1; i < hi; ++i) out += x[i];
      return out;
    };
    of_rows[r] = sum(grad);
    if (!entropy_grad.empty()) of_entropies[r] = sum(entropy_grad);
    if (hi - lo == 1) continue;
    // A token's entry may be that of several targets.
    std::map<int32_t, std::pair<double, double>> of_ids;  // log p, sum of d loss / d of it
    for (size_t i = lo; i < hi; ++i) {
      auto& [logprob, slope] = of_ids[ids_[static_cast<size_t>(first_[from]) + i]];
      logprob = logprobs[i];
      slope += grad[i];
    }
    for (const auto& [id, of_id] : of_ids) {
      const auto& [logprob, slope] = of_id;
      const double p = std::exp(logprob);
      double value = slope - double{of_rows[r]} * p;
      if (!of_entropies.empty() && of_entropies[r] != 0)
        value -= double{of_entropies[r]} * p * (logprob + stats[r].entropy);
      several.add(static_cast<int64_t>(r), id);
      values.push_back(value / double{temperature(begin + static_cast<int64_t>(r))});
    }
  }
  const auto n = lead_.temperature.empty() ? 0 : size;
  nn::logits_grad_(logits, std::span(lead_.ids).subspan(from, size),
                   std::span(lead_.temperature).subspan(n ? from : 0, n), stats, of_rows,
                   of_entropies);
  if (values.empty()) return;
  logits.index_put_(several.index(logits.device()),
                    at::tensor(values, at::kDouble).to(logits.options()));
}

}  // namespace twinkle::nn
