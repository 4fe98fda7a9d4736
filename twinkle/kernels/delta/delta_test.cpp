#include "twinkle/kernels/delta/delta.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "twinkle/base/error.h"

namespace twinkle::kernels {
namespace {

constexpr DeltaShape kShape{.key_heads = 2, .value_heads = 4, .key_dim = 10, .value_dim = 20};

DeltaInputs drawn(int64_t tokens, at::ScalarType type, double strength = 1) {
  const auto draw = [&](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).to(type); };
  return {.qkv = draw({tokens, kShape.channels()}),
          .a = draw({tokens, 4}),
          .b = draw({tokens, 4}),
          .a_log = draw({4}) + std::log(strength),
          .dt_bias = draw({4})};
}

DeltaInputs rows_of(const DeltaInputs& in, int64_t begin, int64_t end) {
  DeltaInputs out = in;
  for (at::Tensor* x : {&out.qkv, &out.a, &out.b}) *x = x->slice(0, begin, end);
  return out;
}

// The recurrence of one sequence, token by token, in the inputs' type.
at::Tensor recurrence(const DeltaInputs& in) {
  const int64_t tokens = in.qkv.size(0), keys = kShape.key_heads * kShape.key_dim;
  const auto unit = [](const at::Tensor& x) {
    return x * at::rsqrt(x.square().sum(-1, true) + 1e-6);
  };
  const auto heads = [&](int64_t from) {
    const auto x = in.qkv.slice(1, from, from + keys).reshape({tokens, 2, kShape.key_dim});
    return unit(x).repeat_interleave(2, 1);
  };
  const at::Tensor q = heads(0) / std::sqrt(10.0), k = heads(keys);
  const at::Tensor v = in.qkv.slice(1, 2 * keys).reshape({tokens, 4, kShape.value_dim});
  const at::Tensor beta = at::sigmoid(in.b);
  const at::Tensor kept = (-in.a_log.exp() * at::softplus(in.a + in.dt_bias)).exp();
  at::Tensor s = at::zeros({4, kShape.key_dim, kShape.value_dim}, in.qkv.options());
  std::vector<at::Tensor> out;
  for (int64_t t = 0; t < tokens; ++t) {
    s = s * kept[t].view({4, 1, 1});
    const at::Tensor d = beta[t].unsqueeze(1) * (v[t] - at::einsum("hkv,hk->hv", {s, k[t]}));
    s = s + at::einsum("hk,hv->hkv", {k[t], d});
    out.push_back(at::einsum("hkv,hk->hv", {s, q[t]}));
  }
  return at::stack(out);
}

std::vector<at::Tensor*> all_of(DeltaInputs& in) {
  return {&in.qkv, &in.a, &in.b, &in.a_log, &in.dt_bias};
}

DeltaInputs wide(DeltaInputs in) {
  for (at::Tensor* x : all_of(in)) *x = x->to(at::kDouble).detach().requires_grad_();
  return in;
}

double error(const at::Tensor& got, const at::Tensor& truth) {
  const at::Tensor t = truth.detach();
  return ((got.to(at::kDouble) - t).norm() / t.norm()).item<double>();
}

class DeltaOfType : public testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(7); }
  double limit() const {
    return GetParam() == at::kDouble ? 1e-13 : GetParam() == at::kFloat ? 2e-6 : 5e-3;
  }
};

TEST_P(DeltaOfType, ForwardAndBackwardAreTheRecurrencesAndItsAutograds) {
  const std::array<int64_t, 5> cu{0, 5, 69, 134, 284};
  const DeltaInputs in = drawn(284, GetParam());
  DeltaInputs truth = wide(in);
  std::vector<at::Tensor> parts;
  for (size_t s = 0; s + 1 < cu.size(); ++s) {
    parts.push_back(recurrence(rows_of(truth, cu[s], cu[s + 1])));
  }
  const at::Tensor out = at::cat(parts), grad = at::randn(out.sizes(), at::kDouble).to(GetParam());
  out.backward(grad.to(at::kDouble));
  for (const Simd* simd : supported_simd()) {
    SCOPED_TRACE(simd->name);
    const DeltaResult result = delta(in, kShape, cu, true, *simd);
    EXPECT_LT(error(result.out, out), limit());
    const DeltaGrads grads = delta_backward(grad, in, kShape, result.kept, cu, *simd);
    EXPECT_LT(error(grads.qkv, truth.qkv.grad()), limit());
    EXPECT_LT(error(grads.a, truth.a.grad()), 2 * limit());
    EXPECT_LT(error(grads.b, truth.b.grad()), limit());
    EXPECT_LT(error(grads.a_log.sum(0), truth.a_log.grad()), 2 * limit());
    EXPECT_LT(error(grads.dt_bias.sum(0), truth.dt_bias.grad()), 2 * limit());
  }
}

TEST_P(DeltaOfType, StrongAndWeakDecaysStayAsExact) {
  const std::array<int64_t, 2> cu{0, 200};
  for (const double strength : {1e-4, 30.0}) {
    const DeltaInputs in = drawn(200, GetParam(), strength);
    DeltaInputs truth = wide(in);
    const at::Tensor out = recurrence(truth), grad = at::randn(out.sizes()).to(GetParam());
    out.backward(grad.to(at::kDouble));
    const DeltaResult result = delta(in, kShape, cu, true);
    EXPECT_LT(error(result.out, out), 2 * limit()) << strength;
    const DeltaGrads grads = delta_backward(grad, in, kShape, result.kept, cu);
    EXPECT_LT(error(grads.qkv, truth.qkv.grad()), 4 * limit()) << strength;
    EXPECT_LT(error(grads.a, truth.a.grad()), 4 * limit()) << strength;
  }
}

// A state of any content.
class State {
 public:
  explicit State(at::ScalarType type)
      : bytes_(at::full({DeltaState::num_bytes(kShape, type)}, 255, at::kByte)) {}
  std::byte* data() { return reinterpret_cast<std::byte*>(bytes_.data_ptr()); }

 private:
  at::Tensor bytes_;
};

at::Tensor going_on(const DeltaInputs& in, int64_t begin, int64_t end, State& state) {
  const DeltaRun run{.row = 0, .count = end - begin, .first = begin, .state = state.data()};
  return delta_continue(rows_of(in, begin, end), kShape, {&run, 1});
}

TEST_P(DeltaOfType, ASequenceCutAnywhereHasTheSameBits) {
  const std::array<int64_t, 2> cu{0, 131};
  const DeltaInputs in = drawn(131, GetParam());
  const at::Tensor whole = delta(in, kShape, cu, true).out;
  EXPECT_TRUE(at::equal(delta(in, kShape, cu, false).out, whole));
  for (int64_t cut = 1; cut < 131; ++cut) {
    State state(GetParam());
    const at::Tensor head = going_on(in, 0, cut, state), tail = going_on(in, cut, 131, state);
    ASSERT_TRUE(at::equal(at::cat({head, tail}), whole)) << cut;
  }
  State state(GetParam());
  for (int64_t t = 0; t < 131; ++t) {
    ASSERT_TRUE(at::equal(going_on(in, t, t + 1, state)[0], whole[t])) << t;
  }
}

TEST_P(DeltaOfType, AtAMultipleOf64TheClosedPartIsTheWholeState) {
  const DeltaInputs in = drawn(150, GetParam());
  State first(GetParam()), second(GetParam());
  going_on(in, 0, 128, first);
  std::memcpy(second.data(), first.data(),
              static_cast<size_t>(DeltaState::closed_bytes(kShape, GetParam())));
  EXPECT_TRUE(at::equal(going_on(in, 128, 150, second), going_on(in, 128, 150, first)));
}

TEST_P(DeltaOfType, ASequenceAmongOthersHasTheBitsThatItHasAlone) {
  const std::array<int64_t, 5> cu{0, 70, 71, 150, 280};
  const DeltaInputs in = drawn(280, GetParam());
  const DeltaResult all = delta(in, kShape, cu, true);
  const at::Tensor grad = at::randn(all.out.sizes()).to(GetParam());
  const DeltaGrads grads = delta_backward(grad, in, kShape, all.kept, cu);
  std::vector<State> states(4, State(GetParam()));
  std::vector<DeltaRun> runs;
  for (size_t s = 0; s < 4; ++s) {
    const std::array<int64_t, 2> own{0, cu[s + 1] - cu[s]};
    const auto slice = [&](const at::Tensor& x) { return x.slice(0, cu[s], cu[s + 1]); };
    const DeltaInputs mine = rows_of(in, cu[s], cu[s + 1]);
    const DeltaResult alone = delta(mine, kShape, own, true);
    EXPECT_TRUE(at::equal(alone.out, slice(all.out))) << s;
    const DeltaGrads g = delta_backward(slice(grad), mine, kShape, alone.kept, own);
    EXPECT_TRUE(at::equal(g.qkv, slice(grads.qkv))) << s;
    EXPECT_TRUE(at::equal(g.a, slice(grads.a)) && at::equal(g.b, slice(grads.b))) << s;
    EXPECT_TRUE(at::equal(g.a_log, slice(grads.a_log))) << s;
    states[s] = State(GetParam());
    runs.push_back({.row = cu[s], .count = own[1], .first = 0, .state = states[s].data()});
  }
  EXPECT_TRUE(at::equal(delta_continue(in, kShape, runs), all.out));
  runs.erase(runs.begin());
  EXPECT_EQ(delta_continue(in, kShape, runs).slice(0, 0, 70).abs().max().item<double>(), 0)
      << "rows of no run";
}

TEST_P(DeltaOfType, ANumberOfThreadsChangesNoBit) {
  const std::array<int64_t, 3> cu{0, 90, 200};
  const DeltaInputs in = drawn(200, GetParam());
  const int threads = at::get_num_threads();
  const auto run = [&] {
    const DeltaResult result = delta(in, kShape, cu, true);
    return std::pair(result.out, delta_backward(result.out, in, kShape, result.kept, cu).qkv);
  };
  const auto many = run();
  at::set_num_threads(1);
  const auto one = run();
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(many.first, one.first) && at::equal(many.second, one.second));
}

INSTANTIATE_TEST_SUITE_P(Types, DeltaOfType,
                         testing::Values(at::kBFloat16, at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

TEST(Delta, KeepsOneStateForEveryChunkButTheFirst) {
  const DeltaInputs in = drawn(140, at::kFloat);
  const std::array<int64_t, 4> cu{0, 64, 129, 140};
  const at::Tensor kept = delta(in, kShape, cu, true).kept;
  EXPECT_EQ(kept.sizes(), at::IntArrayRef({1, 4 * 10 * 32})) << "values are padded to 16";
  EXPECT_EQ(delta_kept_bytes(kShape, at::kBFloat16, 64), 0);
  EXPECT_EQ(delta_kept_bytes(kShape, at::kBFloat16, 129), 2 * 4 * 10 * 32 * 4);
  EXPECT_FALSE(delta(in, kShape, cu, false).kept.defined());
}

TEST(Delta, MistakesAreNamed) {
  const std::array<int64_t, 2> cu{0, 3};
  const DeltaInputs in = drawn(3, at::kFloat);
  const auto refused = [&](const auto& change) {
    DeltaInputs bad = in;
    change(bad);
    EXPECT_THROW(delta(bad, kShape, cu, false), Error);
  };
  refused([](DeltaInputs& x) { x.qkv = x.qkv.slice(1, 1); });
  refused([](DeltaInputs& x) { x.a = x.a.slice(1, 1); });
  refused([](DeltaInputs& x) { x.b = x.b.to(at::kDouble); });
  refused([](DeltaInputs& x) { x.a_log = x.a_log.slice(0, 1); });
  EXPECT_THROW(delta(in, {3, 4, 10, 20}, cu, false), Error);
  EXPECT_THROW(delta(in, kShape, std::array<int64_t, 2>{0, 4}, false), Error);
  const DeltaRun run{.row = 2, .count = 2, .first = 0, .state = nullptr};
  EXPECT_THROW(delta_continue(in, kShape, {&run, 1}), Error);
}

}  // namespace
}  // namespace twinkle::kernels
