#include "twinkle/nn/attention/latent.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "twinkle/kernels/allocation_meter_for_test.h"
#include "twinkle/kernels/finite_difference_for_test.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {
namespace {

constexpr int64_t kHeads = 3, kNope = 4, kValue = 5, kRank = 7;

struct Factors {
  at::Tensor a, b;  // [2, r], [H (n + v), 2]
  at::Tensor grad_a = at::zeros_like(a), grad_b = at::zeros_like(b);
};

// y += x A^T B^T for the slots that have factors.
struct LowRank : Delta {
  std::map<int32_t, Factors> of;

  std::vector<at::Tensor> forward(const at::Tensor& x, const Rows& rows, at::Tensor& y) override {
    bool any = false;
    for (size_t s = 0; s < rows.segments.size(); ++s) {
      const auto its = of.find(rows.segments[s].slot);
      if (its == of.end()) continue;
      const int64_t begin = rows.cu_seqlens[s], end = rows.cu_seqlens[s + 1];
      y.slice(0, begin, end) +=
          x.slice(0, begin, end).matmul(its->second.a.t()).matmul(its->second.b.t());
      any = true;
    }
    return any ? std::vector<at::Tensor>{x} : std::vector<at::Tensor>{};
  }
  int64_t saved_bytes(const Rows& rows) const override {
    int64_t bytes = 0;
    for (size_t s = 0; s < rows.segments.size(); ++s) {
      if (of.contains(rows.segments[s].slot))
        bytes += (rows.cu_seqlens[s + 1] - rows.cu_seqlens[s]) * kRank * 4;
    }
    return bytes;
  }
  void backward(const at::Tensor& dy, const at::Tensor& x, const std::vector<at::Tensor>&,
                const Rows& rows, at::Tensor&) override {
    for (size_t s = 0; s < rows.segments.size(); ++s) {
      const auto its = of.find(rows.segments[s].slot);
      if (its == of.end() || !rows.segments[s].learn) continue;
      auto& [a, b, grad_a, grad_b] = its->second;
      grad_b += dy.t().matmul(x.matmul(a.t()));
      grad_a += dy.matmul(b).t().matmul(x);
    }
  }
};

Factors some_factors(at::ScalarType type) {
  return {at::randn({2, kRank}).to(type), at::randn({kHeads * (kNope + kValue), 2}).to(type)};
}

Linear some_kv_b(at::ScalarType type) {
  // The library's float64 products would have to be tried first, for seconds.
  return {.weight = at::randn({kHeads * (kNope + kValue), kRank}).to(type),
          .exact = type != at::kDouble};
}

// By torch, with the weight of each sequence.
at::Tensor latent_by_torch(const at::Tensor& q, const std::vector<at::Tensor>& weights,
                           const Rows& rows) {
  std::vector<at::Tensor> out;
  for (size_t s = 0; s < weights.size(); ++s) {
    const at::Tensor w = weights[s].view({kHeads, kNope + kValue, kRank});
    const at::Tensor mixed =
        at::einsum("thn,hnr->thr",
                   {q.slice(0, rows.cu_seqlens[s], rows.cu_seqlens[s + 1]), w.slice(1, 0, kNope)});
    out.push_back(at::einsum("thr,hvr->thv", {mixed, w.slice(1, kNope)}));
  }
  return at::cat(out);
}

at::Tensor both(const Linear& kv_b, const Rows& rows, const at::Tensor& q) {
  const AbsorbedKv absorbed(kv_b, kHeads, kNope, rows);
  return absorbed.values(absorbed.queries(q));
}

TEST(AbsorbedKv, ScoresAndValuesAreThoseOfTheKeysAndValuesOfEveryHead) {
  at::manual_seed(1);
  const Linear kv_b = some_kv_b(at::kFloat);
  const Rows rows = pack(std::vector<int64_t>{6});
  const at::Tensor q = at::randn({6, kHeads, kNope}), c = at::randn({6, kRank});
  const at::Tensor expanded = c.matmul(kv_b.weight.t()).view({6, kHeads, kNope + kValue});
  const AbsorbedKv absorbed(kv_b, kHeads, kNope, rows);
  const at::Tensor want = at::einsum("thn,shn->hts", {q, expanded.slice(2, 0, kNope)});
  EXPECT_TRUE(at::allclose(at::einsum("thr,sr->hts", {absorbed.queries(q), c}), want, 1e-4, 1e-5));
  const at::Tensor p = want.softmax(-1);
  const at::Tensor values = at::einsum("hts,shv->thv", {p, expanded.slice(2, kNope)});
  EXPECT_TRUE(at::allclose(absorbed.values(at::einsum("hts,sr->thr", {p, c})), values, 1e-4, 1e-5));
}

TEST(AbsorbedKv, ItsGradientsEqualFiniteDifferences) {
  at::manual_seed(2);
  LowRank delta;
  delta.of.emplace(1, some_factors(at::kDouble));
  Linear kv_b = some_kv_b(at::kDouble);
  kv_b.delta = &delta;
  const Rows rows = rows_of({2, 3}, {-1, 1}, {0, 0}, {1, 1});
  const at::Tensor q = kernels::leaf({5, kHeads, kNope});
  kernels::expect_gradients([&] { return both(kv_b, rows, q); }, {q});
}

TEST(AbsorbedKv, GradientsOfTheWeightAndOfAdaptersEqualPlainAutograds) {
  at::manual_seed(3);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    WeightGrad sum;
    LowRank delta;
    for (const int32_t slot : {1, 2}) delta.of.emplace(slot, some_factors(type));
    Linear kv_b = some_kv_b(type);
    kv_b.delta = &delta, kv_b.weight_grad = &sum;
    // The last sequence's adapter has no factors here, the fourth's do not learn.
    const Rows rows = rows_of({3, 2, 4, 2, 1}, {1, 2, 1, 2, 9}, {0, 0, 0, 0, 0}, {1, 1, 1, 0, 1});
    const at::Tensor q = at::randn({12, kHeads, kNope}).to(type).requires_grad_();
    const at::Tensor w = kv_b.weight.detach().clone().requires_grad_();
    std::map<int32_t, std::pair<at::Tensor, at::Tensor>> leaves;
    for (auto& [slot, its] : delta.of) {
      leaves[slot] = {its.a.clone().requires_grad_(), its.b.clone().requires_grad_()};
    }
    std::vector<at::Tensor> weights;
    for (const Segment& segment : rows.segments) {
      const auto its = leaves.find(segment.slot);
      at::Tensor one = its == leaves.end() ? w : w + its->second.second.matmul(its->second.first);
      weights.push_back(segment.learn ? one : one.detach());
    }
    const at::Tensor got = both(kv_b, rows, q), want = latent_by_torch(q, weights, rows);
    EXPECT_TRUE(at::allclose(got, want, 1e-4, 1e-4));
    const at::Tensor g = at::randn(want.sizes()).to(type);
    const at::Tensor dq = torch::autograd::grad({got}, {q}, {g})[0];
    want.backward(g);
    EXPECT_TRUE(at::allclose(dq, q.grad(), 1e-4, 1e-4));
    EXPECT_TRUE(at::allclose(sum.sum, w.grad(), 1e-4, 1e-4));
    for (auto& [slot, its] : delta.of) {
      EXPECT_TRUE(at::allclose(its.grad_a, leaves[slot].first.grad(), 1e-4, 1e-4)) << slot;
      EXPECT_TRUE(at::allclose(its.grad_b, leaves[slot].second.grad(), 1e-4, 1e-4)) << slot;
    }
  }
}

TEST(AbsorbedKv, WhatBackwardKeepsFromOneProductToTheOtherIsCounted) {
  at::manual_seed(6);
  LowRank delta;
  for (const int32_t slot : {1, 2}) delta.of.emplace(slot, some_factors(at::kFloat));
  Linear kv_b = some_kv_b(at::kFloat);
  kv_b.delta = &delta;
  // Slot 9 and no slot have no factors.
  const Rows rows = rows_of({3, 2, 4, 2, 1}, {1, 2, 1, -1, 9}, {0, 0, 0, 0, 0}, {1, 1, 1, 1, 1});
  const AbsorbedKv absorbed(kv_b, kHeads, kNope, rows);
  const at::Tensor mixed = at::randn({12, kHeads, kRank}).requires_grad_();
  const at::Tensor y = absorbed.values(mixed), g = at::ones_like(y);
  const kernels::AllocationMeter meter;
  const at::Tensor dx = torch::autograd::grad({y}, {mixed}, {g}, /*retain_graph=*/true)[0];
  const int64_t kept = meter.now() - static_cast<int64_t>(dx.nbytes());
  EXPECT_EQ(kept, 3 * 4 * kv_b.weight.numel());
  EXPECT_EQ(AbsorbedKv::backward_bytes(kv_b, rows), kept);
  kv_b.delta = nullptr;
  EXPECT_EQ(AbsorbedKv::backward_bytes(kv_b, rows), 0);
}

TEST(AbsorbedKv, ASequenceHasTheSameBitsAloneAndAmongOthers) {
  at::manual_seed(4);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    Linear kv_b = some_kv_b(type);
    LowRank delta;
    for (const int32_t slot : {1, 2}) delta.of.emplace(slot, some_factors(type));
    kv_b.delta = &delta;
    const Rows rows = rows_of({40, 1, 17}, {1, 2, 1}, {0, 0, 0}, {1, 1, 1});
    const at::Tensor q = at::randn({58, kHeads, kNope}).to(type),
                     g = at::randn({58, kHeads, kValue}).to(type);
    const auto run = [&](const at::Tensor& part, const at::Tensor& slope, const Rows& of) {
      const at::Tensor x = part.detach().clone().requires_grad_();
      const at::Tensor y = both(kv_b, of, x);
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(at::equal(both(kv_b, of, x), y));
      return std::pair{y, torch::autograd::grad({y}, {x}, {slope})[0]};
    };
    const auto all = run(q, g, rows);
    for (size_t s = 0; s < 3; ++s) {
      const int64_t begin = rows.cu_seqlens[s], end = rows.cu_seqlens[s + 1];
      const auto alone = run(q.slice(0, begin, end), g.slice(0, begin, end),
                             rows_of({end - begin}, {rows.segments[s].slot}, {0}, {1}));
      EXPECT_TRUE(at::equal(alone.first, all.first.slice(0, begin, end)));
      EXPECT_TRUE(at::equal(alone.second, all.second.slice(0, begin, end)));
    }
  }
}

}  // namespace
}  // namespace twinkle::nn
