#include <algorithm>

#include "twinkle/kernels/experts/balance.h"
#include "twinkle/kernels/experts/route_checks.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

// run(s, begin, end) of every sequence's rows.
template <class Run>
void for_sequences(std::span<const int64_t> cu_seqlens, const Run& run) {
  parallel_for(0, std::ssize(cu_seqlens) - 1, 1, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s)
      run(s, cu_seqlens[static_cast<size_t>(s)], cu_seqlens[static_cast<size_t>(s) + 1]);
  });
}

}  // namespace

ChoiceSums choice_sums(const at::Tensor& scores, const at::Tensor& ids,
                       std::span<const int64_t> cu_seqlens) {
  ChoiceSums out;
  with_scores(scores, "the router's scores", [&]<class A>(A) {
    check_routed(ids, "the chosen experts' tensor", at::kInt);
    const int64_t experts = scores.size(1), k = ids.size(1);
    const auto size = static_cast<size_t>((std::ssize(cu_seqlens) - 1) * experts);
    out = {.counts = std::vector<double>(size), .scores = std::vector<double>(size)};
    const A* score = scores.const_data_ptr<A>();
    const int32_t* id = ids.const_data_ptr<int32_t>();
    for_sequences(cu_seqlens, [&](int64_t s, int64_t begin, int64_t end) {
      double *counts = out.counts.data() + s * experts, *sums = out.scores.data() + s * experts;
      for (int64_t t = begin; t < end; ++t) {
        for (int64_t j = 0; j < k; ++j) ++counts[id[t * k + j]];
        for (int64_t e = 0; e < experts; ++e)
          sums[e] += static_cast<double>(score[t * experts + e]);
      }
    });
  });
  return out;
}

void add_slopes(const at::Tensor& scores, std::span<const double> slopes,
                std::span<const int64_t> cu_seqlens, const at::Tensor& dlogits) {
  with_scores(scores, "the router's scores", [&]<class A>(A) {
    check_routed(dlogits, "the gradient of the router's logits", scores.scalar_type());
    const int64_t experts = scores.size(1);
    const A* from = scores.const_data_ptr<A>();
    A* to = dlogits.mutable_data_ptr<A>();
    for_sequences(cu_seqlens, [&](int64_t s, int64_t begin, int64_t end) {
      const auto mine =
          slopes.subspan(static_cast<size_t>(s * experts), static_cast<size_t>(experts));
      if (std::ranges::all_of(mine, [](double slope) { return slope == 0; })) return;
      std::vector<A> slope;
      for (const double x : mine) slope.push_back(static_cast<A>(x));
      for (int64_t t = begin; t < end; ++t) {
        const A* score = from + t * experts;
        A mean = 0;
        for (int64_t e = 0; e < experts; ++e) mean += score[e] * slope[static_cast<size_t>(e)];
        for (int64_t e = 0; e < experts; ++e)
          to[t * experts + e] += score[e] * (slope[static_cast<size_t>(e)] - mean);
      }
    });
  });
}

}  // namespace twinkle::kernels
