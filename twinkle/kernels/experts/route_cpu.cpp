#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/kernels/experts/route.h"
#include "twinkle/kernels/experts/route_checks.h"
#include "twinkle/kernels/simd/tasks.h"

namespace twinkle::kernels {
namespace {

template <class A>
void softmax(const A* logits, int64_t count, A* out) {
  const A top = *std::max_element(logits, logits + count);
  A sum = 0;
  for (int64_t e = 0; e < count; ++e) sum += out[e] = std::exp(logits[e] - top);
  for (int64_t e = 0; e < count; ++e) out[e] /= sum;
}

template <class A>
void sigmoid(const A* logits, int64_t count, A* out) {
  for (int64_t e = 0; e < count; ++e) out[e] = 1 / (1 + std::exp(-logits[e]));
}

// The best `most` of what is added, the largest first; of equal ones those that came first.
template <class A>
class Best {
 public:
  explicit Best(int64_t most) : most_(static_cast<size_t>(most)) { found_.reserve(most_ + 1); }
  void clear() { found_.clear(); }
  void add(int32_t id, A score) {
    if (found_.size() == most_ && !(score > found_.back().score)) return;
    const auto at = std::ranges::upper_bound(found_, score, std::greater(), &Found::score);
    found_.insert(at, {id, score});
    if (found_.size() > most_) found_.pop_back();
  }
  struct Found {
    int32_t id;
    A score;
  };
  const std::vector<Found>& found() const { return found_; }

 private:
  size_t most_;
  std::vector<Found> found_;
};

// Chooses for one row after another.
template <class A>
class Choice {
 public:
  Choice(const RouteOptions& options, int64_t num_experts)
      : options_(options),
        experts_(options.top_k),
        groups_(options.top_groups),
        size_(num_experts / options.groups),
        kept_(static_cast<size_t>(options.groups)) {}

  void choose(const A* score, int32_t* ids) {
    if (options_.groups > 1) choose_groups(score);
    experts_.clear();
    int32_t id = 0;
    for (int64_t g = 0; g < options_.groups; ++g) {
      const bool kept = options_.groups == 1 || kept_[static_cast<size_t>(g)];
      for (int64_t i = 0; i < size_; ++i, ++id) {
        if (kept) experts_.add(id, score[id]);
      }
    }
    for (const auto& found : experts_.found()) *ids++ = found.id;
    std::sort(ids - options_.top_k, ids);
  }

 private:
  void choose_groups(const A* score) {
    groups_.clear();
    std::fill(kept_.begin(), kept_.end(), false);
    for (int64_t g = 0; g < options_.groups; ++g, score += size_) {
      A first = -std::numeric_limits<A>::infinity(), second = first;
      for (int64_t i = 0; i < size_; ++i) {
        second = std::max(second, std::min(first, score[i]));
        first = std::max(first, score[i]);
      }
      groups_.add(static_cast<int32_t>(g), options_.group_by_two ? first + second : first);
    }
    for (const auto& group : groups_.found()) kept_[static_cast<size_t>(group.id)] = true;
  }

  const RouteOptions& options_;
  Best<A> experts_, groups_;
  int64_t size_;
  std::vector<bool> kept_;
};

template <class A>
A divisor(const A* score, const int32_t* ids, const RouteOptions& options) {
  if (!options.normalise) return 1;
  A sum = 0;
  for (int64_t j = 0; j < options.top_k; ++j) sum += score[ids[j]];
  return sum + static_cast<A>(options.norm_eps);
}

// d loss / d score of the chosen, in `to` [k].
template <class A>
void score_grads(const A* grad, const A* score, const int32_t* ids, const RouteOptions& options,
                 A* to) {
  const A sum = divisor(score, ids, options);
  A shared = 0;
  // The sum's square, by which the formula divides, may be too small for the type where it is not.
  for (int64_t j = 0; options.normalise && j < options.top_k; ++j)
    shared += grad[j] * (score[ids[j]] / sum) / sum;
  for (int64_t j = 0; j < options.top_k; ++j)
    to[j] = static_cast<A>(options.scale) * (grad[j] / sum - shared);
}

}  // namespace

void check_route(const RouteOptions& o, int64_t num_experts) {
  require(o.top_k >= 1 && o.top_k <= num_experts, Code::kInvalid, "kernels: ", o.top_k,
          " experts a token, it must be from 1 to the number of experts, ", num_experts);
  require(o.groups >= 1 && num_experts % o.groups == 0, Code::kInvalid, "kernels: ", o.groups,
          " groups of experts, they must divide the number of experts, ", num_experts);
  require(o.top_groups >= 1 && o.top_groups <= o.groups, Code::kInvalid, "kernels: ", o.top_groups,
          " chosen groups of experts, it must be from 1 to the number of groups, ", o.groups);
  const int64_t size = num_experts / o.groups;
  require(o.top_k <= size * o.top_groups, Code::kInvalid, "kernels: ", o.top_k,
          " experts a token, the ", o.top_groups, " chosen groups have ", size * o.top_groups);
  require(o.groups == 1 || !o.group_by_two || size >= 2, Code::kInvalid,
          "kernels: groups of 1 expert, which are worth the sum of 2");
}

at::Tensor route_scores(const at::Tensor& logits, RouteScore score) {
  at::Tensor out;
  with_scores(logits, "the router's logits", [&]<class A>(A) {
    out = at::empty_like(logits);
    const int64_t experts = logits.size(1);
    const A* from = logits.const_data_ptr<A>();
    A* to = out.mutable_data_ptr<A>();
    parallel_for(0, logits.size(0), row_grain(8 * experts), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        (score == RouteScore::kSoftmax ? softmax<A> : sigmoid<A>)(from + t * experts, experts,
                                                                  to + t * experts);
      }
    });
  });
  return out;
}

at::Tensor route_top_k(const at::Tensor& scores, const at::Tensor& correction,
                       const RouteOptions& options) {
  at::Tensor ids;
  with_scores(scores, "the router's scores", [&]<class A>(A) {
    const int64_t experts = scores.size(1);
    check_route(options, experts);
    ids = at::empty({scores.size(0), options.top_k}, scores.options().dtype(at::kInt));
    const A* score = scores.const_data_ptr<A>();
    const A* bias = correction.defined() ? correction.const_data_ptr<A>() : nullptr;
    int32_t* to = ids.mutable_data_ptr<int32_t>();
    parallel_for(0, scores.size(0), row_grain(4 * experts), [&](int64_t begin, int64_t end) {
      Choice<A> choice(options, experts);
      std::vector<A> row(static_cast<size_t>(experts));
      for (int64_t t = begin; t < end; ++t) {
        int64_t nan = -1;  // an expert of such a score
        for (int64_t e = 0; e < experts; ++e) {
          A& worth = row[static_cast<size_t>(e)];
          worth = score[t * experts + e] + (bias ? bias[e] : A{0});
          if (std::isnan(worth)) nan = e;
        }
        int32_t* const chosen = to + t * options.top_k;
        if (nan < 0) {
          choice.choose(row.data(), chosen);
          continue;
        }
        std::iota(chosen, chosen + options.top_k, 0);
        if (nan >= options.top_k) chosen[options.top_k - 1] = static_cast<int32_t>(nan);
      }
    });
  });
  return ids;
}

at::Tensor route_weights(const at::Tensor& scores, const at::Tensor& ids,
                         const RouteOptions& options) {
  at::Tensor out;
  with_scores(scores, "the router's scores", [&]<class A>(A) {
    check_routed(ids, "the chosen experts' tensor", at::kInt);
    out = at::empty(ids.sizes(), scores.options());
    const int64_t experts = scores.size(1), k = options.top_k;
    const int32_t* id = ids.const_data_ptr<int32_t>();
    const A* score = scores.const_data_ptr<A>();
    A* to = out.mutable_data_ptr<A>();
    for (int64_t t = 0; t < scores.size(0); ++t, id += k, score += experts, to += k) {
      const A sum = divisor(score, id, options);
      for (int64_t j = 0; j < k; ++j) to[j] = score[id[j]] / sum * static_cast<A>(options.scale);
    }
  });
  return out;
}

at::Tensor route_backward(const at::Tensor& grad, const at::Tensor& scores, const at::Tensor& ids,
                          const RouteOptions& options) {
  at::Tensor out;
  with_scores(scores, "the router's scores", [&]<class A>(A) {
    check_routed(ids, "the chosen experts' tensor", at::kInt);
    check_routed(grad, "the gradient of the router's weights", scores.scalar_type());
    out = at::zeros_like(scores);
    const int64_t experts = scores.size(1), k = options.top_k;
    const int32_t* id = ids.const_data_ptr<int32_t>();
    const A *score = scores.const_data_ptr<A>(), *dweight = grad.const_data_ptr<A>();
    A* to = out.mutable_data_ptr<A>();
    std::vector<A> slope(static_cast<size_t>(k));
    for (int64_t t = 0; t < scores.size(0); ++t) {
      score_grads(dweight, score, id, options, slope.data());
      A mean = 0;
      for (int64_t j = 0; j < k; ++j) {
        const A s = score[id[j]], d = slope[static_cast<size_t>(j)];
        mean += d * s;
        to[id[j]] = options.score == RouteScore::kSoftmax ? d * s : d * s * (1 - s);
      }
      if (options.score == RouteScore::kSoftmax) {
        for (int64_t e = 0; e < experts; ++e) to[e] -= mean * score[e];
      }
      id += k, score += experts, dweight += k, to += experts;
    }
  });
  return out;
}

}  // namespace twinkle::kernels
