#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "twinkle/kernels/experts/far_route.h"
#include "twinkle/kernels/experts/route_checks.h"

namespace twinkle::kernels {
namespace {

// True if a score that matters in the sum that route_cpu.cpp divides by may be denormal.
template <class A>
bool is_far(const A* scores, const int32_t* ids, const RouteOptions& options) {
  A sum = static_cast<A>(options.norm_eps);
  for (int64_t j = 0; j < options.top_k; ++j) sum += scores[ids[j]];
  return sum < std::numeric_limits<A>::min() / std::numeric_limits<A>::epsilon();
}

template <class A>
void softmax_of_chosen(const A* logits, const int32_t* ids, const RouteOptions& options, A* to) {
  A top = logits[ids[0]], sum = 0;
  for (int64_t j = 1; j < options.top_k; ++j) top = std::max(top, logits[ids[j]]);
  for (int64_t j = 0; j < options.top_k; ++j) sum += to[j] = std::exp(logits[ids[j]] - top);
  for (int64_t j = 0; j < options.top_k; ++j) to[j] *= static_cast<A>(options.scale) / sum;
}

// d loss / d logit of all, in `to` [E].
template <class A>
void softmax_grads(const A* grad, const A* weights, const int32_t* ids, const RouteOptions& options,
                   std::span<A> to) {
  A mean = 0;
  for (int64_t j = 0; j < options.top_k; ++j)
    mean += grad[j] * (weights[j] / static_cast<A>(options.scale));
  std::ranges::fill(to, A{0});
  for (int64_t j = 0; j < options.top_k; ++j)
    to[static_cast<size_t>(ids[j])] = weights[j] * (grad[j] - mean);
}

}  // namespace

at::Tensor far_route_weights(const at::Tensor& logits, const Routed& routed,
                             const RouteOptions& options) {
  const auto& [scores, ids] = routed;
  const at::Tensor out = route_weights(scores, ids, options);
  if (!options.normalise) return out;
  with_scores(scores, "the router's scores", [&]<class A>(A) {
    check_routed(logits, "the router's logits", scores.scalar_type());
    const int64_t experts = scores.size(1), k = options.top_k;
    const int32_t* id = ids.const_data_ptr<int32_t>();
    const A *logit = logits.const_data_ptr<A>(), *score = scores.const_data_ptr<A>();
    A* to = out.mutable_data_ptr<A>();
    for (int64_t t = 0; t < scores.size(0); ++t) {
      if (is_far(score, id, options)) softmax_of_chosen(logit, id, options, to);
      id += k, logit += experts, score += experts, to += k;
    }
  });
  return out;
}

at::Tensor far_route_backward(const at::Tensor& grad, const at::Tensor& weights,
                              const Routed& routed, const RouteOptions& options) {
  const auto& [scores, ids] = routed;
  const at::Tensor out = route_backward(grad, scores, ids, options);
  if (!options.normalise) return out;
  with_scores(scores, "the router's scores", [&]<class A>(A) {
    check_routed(weights, "the router's weights", scores.scalar_type());
    const int64_t experts = scores.size(1), k = options.top_k;
    const int32_t* id = ids.const_data_ptr<int32_t>();
    const A *score = scores.const_data_ptr<A>(), *dweight = grad.const_data_ptr<A>(),
            *weight = weights.const_data_ptr<A>();
    A* to = out.mutable_data_ptr<A>();
    for (int64_t t = 0; t < scores.size(0); ++t) {
      if (is_far(score, id, options))
        softmax_grads(dweight, weight, id, options, std::span(to, static_cast<size_t>(experts)));
      id += k, score += experts, dweight += k, weight += k, to += experts;
    }
  });
  return out;
}

}  // namespace twinkle::kernels
