#include "twinkle/nn/head/head.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>

#include "twinkle/kernels/allocation_meter_for_test.h"
#include "twinkle/kernels/finite_difference_for_test.h"
#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {
namespace {

struct Problem {
  Rows rows = rows_of({4, 5, 3}, {-1, -1, -1}, {0, 0, 0}, {1, 1, 1});
  at::Tensor hidden = at::randn({12, 8}, at::kDouble), weight = at::randn({50, 8}, at::kDouble);
  Targets targets{{0, 1, 3, 4, 5, 8, 10, 11}, {3, 0, 49, 7, 7, 21, 30, 2}, {}};
  std::vector<double> grad{1, -2, 0.5, 3, 1, 1, -1, 2};
  std::vector<float> entropy_grad{0, 1, -0.5, 0, 2, 0.25f, -3, 1};
};

// With a softcap of this head's logits, some of which are beyond it.
constexpr double kCap = 2.5;

// 96 tokens, every third without a target, 500 logits of about 1, of which some are likely.
Problem drawn(at::ScalarType type) {
  at::manual_seed(7);
  Problem p;
  p.rows = rows_of({40, 33, 23}, {-1, -1, -1}, {0, 0, 0}, {1, 1, 1});
  p.hidden = at::randn({96, 72}).to(type);
  p.weight = (at::randn({500, 72}) * 0.25).to(type);
  p.targets = {};
  p.grad.clear();
  p.entropy_grad.clear();
  for (int64_t row = 0; row < 96; ++row) {
    if (row % 3 == 1) continue;
    p.targets.rows.push_back(row);
    p.targets.ids.push_back(static_cast<int32_t>((row * 131) % 500));
    p.grad.push_back(0.25 * static_cast<double>(row % 9) - 1);
    p.entropy_grad.push_back(0.5f * static_cast<float>(row % 5) - 0.5f);
  }
  return p;
}

struct Answers {
  at::Tensor logprobs, entropies, dhidden, dweight;
};

// By autograd over ATen's own operators, in the inputs' type, but for logits, which are widened to
// float32 as transformers does.
Answers plain(const Problem& p, double softcap = 0) {
  const auto h = p.hidden.clone().requires_grad_(true), w = p.weight.clone().requires_grad_(true);
  const auto rows = at::tensor(at::ArrayRef<int64_t>(p.targets.rows));
  const auto ids = at::tensor(at::ArrayRef<int32_t>(p.targets.ids)).to(at::kLong);
  const double t = p.targets.temperature.empty() ? 1 : p.targets.temperature[0];
  auto logits = at::linear(h.index_select(0, rows), w);
  if (softcap > 0) logits = (logits / softcap).tanh() * softcap;
  if (logits.scalar_type() == at::kBFloat16) logits = logits.to(at::kFloat);
  const auto logp = at::log_softmax(logits / t, 1);
  const auto picked = logp.gather(1, ids.unsqueeze(1)).squeeze(1);
  const auto entropies = -(logp.exp() * logp).sum(1);
  const auto grad = at::tensor(at::ArrayRef<double>(p.grad), at::kDouble).to(picked.scalar_type());
  const auto of_entropy = at::tensor(at::ArrayRef<float>(p.entropy_grad)).to(grad.scalar_type());
  const auto d = torch::autograd::grad({picked, entropies}, {h, w}, {grad, of_entropy});
  return {picked.detach(), entropies.detach(), d[0], d[1]};
}

Answers ours(const Problem& p, int64_t chunk, double softcap = 0) {
  WeightGrad dw;
  const Linear head{.weight = p.weight, .weight_grad = &dw, .softcap = softcap};
  const auto out =
      head_backward(p.hidden, head, p.targets,
                    [&](int64_t first, std::span<const float> logprobs, std::span<float> grad) {
                      for (size_t i = 0; i < logprobs.size(); ++i)
                        grad[i] = static_cast<float>(p.grad[first + i]);
                    },
                    p.rows, {.entropy_grad = p.entropy_grad, .chunk = chunk});
  const auto forward = head_forward(p.hidden, Linear{.weight = p.weight, .softcap = softcap},
                                    p.targets, p.rows, {.entropy = true, .chunk = chunk + 1});
  EXPECT_EQ(out.logprobs, forward.logprobs);
  EXPECT_EQ(out.entropies, forward.entropies);
  return {at::tensor(at::ArrayRef<float>(out.logprobs)),
          at::tensor(at::ArrayRef<float>(forward.entropies)), out.dhidden, dw.sum};
}

// Calls check(name, ours, theirs, other) for each of the four answers.
template <class Check>
void compare(const Answers& a, const Answers& b, const Answers& c, Check&& check) {
  check("log-probabilities", a.logprobs, b.logprobs, c.logprobs);
  check("entropies", a.entropies, b.entropies, c.entropies);
  check("d hidden", a.dhidden, b.dhidden, c.dhidden);
  check("d weight", a.dweight, b.dweight, c.dweight);
}

TEST(Head, ForwardAndBackwardInOnePassEqualPlainAutograd) {
  at::manual_seed(5);
  for (const float t : {1.0f, 0.7f}) {
    Problem p;
    if (t != 1) p.targets.temperature.assign(8, t);
    const Answers want = plain(p);
    compare(ours(p, 2), want, want, [](const char* name, auto& mine, auto& theirs, auto&) {
      EXPECT_TRUE(at::allclose(mine.to(at::kDouble), theirs, 1e-5, 1e-6)) << name;
    });
  }
}

TEST(Head, WithASoftcapForwardAndBackwardEqualPlainAutograd) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    for (const float t : {1.0f, 0.7f}) {
      Problem p = drawn(type);
      if (t != 1) p.targets.temperature.assign(p.targets.rows.size(), t);
      const Answers want = plain(p, kCap);
      compare(ours(p, 5, kCap), want, want, [](const char* name, auto& mine, auto& theirs, auto&) {
        EXPECT_TRUE(at::allclose(mine.to(at::kDouble), theirs.to(at::kDouble), 1e-5, 1e-5)) << name;
      });
    }
  }
}

TEST(Head, WithASoftcapItsGradientsAreThoseOfFiniteDifferences) {
  at::manual_seed(9);
  Problem p;
  p.targets.temperature.assign(8, 0.5f);
  const auto rows = at::tensor(at::ArrayRef<int64_t>(p.targets.rows));
  const auto value = [&] {
    std::vector<kernels::RowStats> stats(8);
    const at::Tensor logits = product(p.hidden.index_select(0, rows), Linear{p.weight});
    logprobs_of((logits / kCap).tanh() * kCap, p.targets.ids, p.targets.temperature, true, stats);
    double sum = 0;
    for (size_t i = 0; i < 8; ++i)
      sum += p.grad[i] * stats[i].logprob + double{p.entropy_grad[i]} * stats[i].entropy;
    return at::scalar_tensor(sum, at::kDouble);
  };
  const Answers mine = ours(p, 3, kCap);
  for (const auto& [got, of] :
       {std::pair{mine.dhidden, p.hidden}, std::pair{mine.dweight, p.weight}}) {
    const at::Tensor want = kernels::finite_difference(value, of);
    EXPECT_LT((got - want).abs().max().item<double>(), 1e-7);
  }
}

TEST(Head, LogitsWithASoftcapAndTheirGradientsAreAutograds) {
  const auto h = at::randn({12, 8}, at::kDouble).requires_grad_(true),
             w = at::randn({50, 8}, at::kDouble).requires_grad_(true);
  const at::Tensor want = (at::linear(h, w) / kCap).tanh() * kCap / 2, grad = at::randn({12, 50});
  const auto slopes = torch::autograd::grad({want}, {h, w}, {grad.to(at::kDouble)});
  const at::NoGradGuard no_grad;
  WeightGrad of_weight;
  const Linear head{.weight = w, .weight_grad = &of_weight, .softcap = kCap};
  std::vector<float> out(12 * 50);
  head_logits(h, head, {2}, out);
  const at::Tensor mine = at::tensor(at::ArrayRef<float>(out)).view({12, 50});
  EXPECT_TRUE(at::allclose(mine, want.to(at::kFloat), 1e-6, 1e-6));
  EXPECT_TRUE(at::allclose(sampling_logits(h, head, rows_of({12}, {-1}, {0}, {0})), want * 2, 1e-12,
                           1e-12));
  at::Tensor dhidden = at::zeros_like(h);
  head_logits_backward(h, head, {2}, std::span(grad.const_data_ptr<float>(), 12 * 50), dhidden);
  EXPECT_TRUE(at::allclose(dhidden, slopes[0], 1e-11, 1e-11));
  EXPECT_TRUE(at::allclose(of_weight.sum, slopes[1], 1e-11, 1e-11));
}

// The whole head in float64: what it makes of hidden states, statistics of rows, which are not
// rounded, and their gradients by central differences. It learns from all but the last sequence.
TEST(Head, HasTheGradientsOfFiniteDifferences) {
  at::manual_seed(9);
  for (const float t : {1.0f, 0.5f}) {
    Problem p;
    p.targets.temperature.assign(8, t);
    const auto rows = at::tensor(at::ArrayRef<int64_t>(p.targets.rows));
    const auto value = [&] {
      std::vector<kernels::RowStats> stats(8);
      logprobs_of(product(p.hidden.index_select(0, rows), Linear{p.weight}), p.targets.ids,
                  p.targets.temperature, true, stats);
      double sum = 0;
      for (size_t i = 0; i < 8; ++i)
        sum += p.grad[i] * stats[i].logprob + double{p.entropy_grad[i]} * stats[i].entropy;
      return at::scalar_tensor(sum, at::kDouble);
    };
    const Answers mine = ours(p, 3);
    const auto near = [&](const at::Tensor& got, const at::Tensor& of) {
      EXPECT_LT((got - kernels::finite_difference(value, of)).abs().max().item<double>(), 1e-7)
          << t;
    };
    near(mine.dhidden, p.hidden);
    near(mine.dweight, p.weight);
  }
}

TEST(Head, EqualsPlainATenInFloat32) {
  for (const float t : {1.0f, 0.7f}) {
    Problem p = drawn(at::kFloat);
    if (t != 1) p.targets.temperature.assign(p.targets.rows.size(), t);
    const Answers want = plain(p);
    compare(ours(p, 5), want, want, [](const char* name, auto& mine, auto& theirs, auto&) {
      EXPECT_EQ(mine.scalar_type(), at::kFloat) << name;
      EXPECT_TRUE(at::allclose(mine, theirs, 1e-5, 1e-5)) << name;
    });
  }
}

// Both round logits and their gradients to bfloat16. The sums behind them are added in another
// order, so single roundings fall differently, and of a few hundred of these either may be nearer
// by chance: hence a tenth of room. Our d weight is not rounded at all.
TEST(Head, IsAsNearToFloat32InBFloat16AsPlainATen) {
  for (const float t : {1.0f, 0.7f}) {
    Problem p = drawn(at::kBFloat16);
    if (t != 1) p.targets.temperature.assign(p.targets.rows.size(), t);
    Problem exact = p;
    exact.hidden = p.hidden.to(at::kFloat);
    exact.weight = p.weight.to(at::kFloat);
    compare(ours(p, 5), plain(p), plain(exact),
            [](const char* name, auto& mine, auto& theirs, auto& truth) {
              const auto error = [&](const at::Tensor& x) {
                return ((x.to(at::kFloat) - truth).norm() / truth.norm()).template item<double>();
              };
              EXPECT_GT(error(theirs), 1e-5) << name;  // there is something to compare
              EXPECT_LE(error(mine), 1.1 * error(theirs)) << name;
            });
  }
}

// A value head: one row and a bias.
TEST(Head, LogitsAndTheirGradientsOfOneRowAndItsBiasAreAutograds) {
  const auto h = at::randn({12, 8}, at::kDouble).requires_grad_(true),
             w = at::randn({1, 8}, at::kDouble).requires_grad_(true),
             b = at::randn({1}, at::kDouble).requires_grad_(true);
  const at::Tensor want = at::linear(h, w, b) / 2, grad = at::randn({12, 1});
  const auto slopes = torch::autograd::grad({want}, {h, w, b}, {grad.to(at::kDouble)});

  const at::NoGradGuard no_grad;
  WeightGrad of_weight, of_bias;
  const Linear head{.weight = w, .bias = b, .weight_grad = &of_weight, .bias_grad = &of_bias};
  std::vector<float> out(12);
  head_logits(h, head, {2}, out);
  for (int64_t row = 0; row < 12; ++row)
    EXPECT_NEAR(out[static_cast<size_t>(row)], want[row].item<double>(), 1e-6);
  at::Tensor dhidden = at::ones_like(h);
  head_logits_backward(h, head, {2}, std::span(grad.const_data_ptr<float>(), 12), dhidden);
  EXPECT_TRUE(at::allclose(dhidden, slopes[0] + 1, 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(of_weight.sum, slopes[1], 1e-12, 1e-12));
  EXPECT_TRUE(at::allclose(of_bias.sum, slopes[2], 1e-12, 1e-12));
}

TEST(Head, ABiassGradientHasTheSameBitsOnAnyNumberOfThreads) {
  at::manual_seed(3);
  const int64_t tokens = 70000;  // at::sum would share so many
  const at::Tensor hidden = at::randn({tokens, 8}), grad = at::randn({tokens});
  const auto sum_on = [&](int threads) {
    at::set_num_threads(threads);
    WeightGrad sum;
    const Linear head{.weight = at::zeros({1, 8}), .bias = at::zeros({1}), .bias_grad = &sum};
    head_logits_backward(hidden, head, {1}, std::span(grad.const_data_ptr<float>(), tokens),
                         at::zeros_like(hidden));
    return sum.sum;
  };
  const int before = at::get_num_threads();
  const at::Tensor one = sum_on(1), four = sum_on(4);
  at::set_num_threads(before);
  EXPECT_TRUE(at::equal(one, four));
  EXPECT_NEAR(one.item<double>(), grad.to(at::kDouble).sum().item<double>(), 0.05);
}

TEST(Head, RowsWithoutATargetGetNoGradient) {
  Problem p;
  const auto out = head_backward(
      p.hidden, {p.weight}, p.targets,
      [](int64_t, std::span<const float>, std::span<float> grad) {
        std::fill(grad.begin(), grad.end(), 1.0f);
      },
      p.rows);
  for (const int64_t row : {2, 6, 7, 9}) EXPECT_EQ(out.dhidden[row].abs().max().item<double>(), 0);
}

TEST(Head, HasTheSameBitsWhateverTheChunk) {
  // With a chunk of one row every row is its own product: the bits must not change in bf16.
  at::manual_seed(6);
  Problem p;
  const auto hidden = at::randn({12, 64}).to(at::kBFloat16),
             weight = at::randn({500, 64}).to(at::kBFloat16);
  const auto one = head_forward(hidden, Linear{weight}, p.targets, p.rows, {.chunk = 1});
  const auto all = head_forward(hidden, Linear{weight}, p.targets, p.rows, {.chunk = 512});
  EXPECT_EQ(one.logprobs, all.logprobs);
}

constexpr int64_t kHeadWidth = 16;

Problem problem_of(int64_t tokens, int64_t vocab, at::ScalarType type) {
  Problem p;
  p.rows = rows_of({tokens}, {-1}, {0}, {1});
  p.hidden = at::ones({tokens, kHeadWidth}, type);
  p.weight = at::full({vocab, kHeadWidth}, 0.01, type);
  p.targets.rows.resize(static_cast<size_t>(tokens));
  std::iota(p.targets.rows.begin(), p.targets.rows.end(), 0);
  p.targets.ids.assign(p.targets.rows.size(), 3);
  p.grad.assign(p.targets.rows.size(), 1);
  p.entropy_grad.assign(p.targets.rows.size(), 0.5f);
  return p;
}

template <class Work>
int64_t peak(const Work& work) {
  const kernels::AllocationMeter meter;
  work();
  return meter.peak();
}

// Peaks of what a head allocates.
struct Peaks {
  int64_t forward, backward;
};

Peaks peaks(const Problem& p, int64_t chunk, bool train, double softcap = 0) {
  WeightGrad dw;
  // Exactness, which may pad rows, is not asked for: its proof takes long in this vocabulary.
  const Linear head{
      .weight = p.weight, .weight_grad = train ? &dw : nullptr, .exact = false, .softcap = softcap};
  const auto ones = [](int64_t, std::span<const float>, std::span<float> grad) {
    std::fill(grad.begin(), grad.end(), 1.0f);
  };
  const HeadOptions options{.entropy = true, .entropy_grad = p.entropy_grad, .chunk = chunk};
  return {
      peak([&] { head_forward(p.hidden, head, p.targets, p.rows, options); }),
      peak([&] { head_backward(p.hidden, head, p.targets, ones, p.rows, options); }),
  };
}

TEST(Head, NeverHoldsMoreLogitsThanAChunk) {
  constexpr int64_t kVocab = 4000, kChunk = 4, kShort = 16, kLong = 64;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto size = static_cast<int64_t>(at::elementSize(type));
    const Problem a = problem_of(kShort, kVocab, type), b = problem_of(kLong, kVocab, type);
    for (const bool train : {false, true}) {
      const Peaks few = peaks(a, kChunk, train), many = peaks(b, kChunk, train);
      // More tokens cost what is as wide as a hidden state, nothing as wide as the vocabulary.
      const int64_t hidden = (kLong - kShort) * kHeadWidth * size;
      EXPECT_LE(many.forward - few.forward, 2 * hidden) << type << train;
      EXPECT_LE(many.backward - few.backward, 4 * hidden) << type << train;
      EXPECT_GE(many.forward, kChunk * kVocab * size) << type << train;
      // The meter sees what a chunk of all tokens holds.
      const Peaks whole = peaks(b, kLong, train);
      EXPECT_GE(whole.forward - many.forward, (kLong - kChunk) * kVocab * size) << type << train;
      EXPECT_GE(whole.backward, kLong * kVocab * size) << type << train;
    }
    EXPECT_GE(peak([&] { plain(b); }) - peak([&] { plain(a); }), (kLong - kShort) * kVocab * 4);
  }
}

TEST(Head, WithASoftcapHoldsLittleMoreThanWithout) {
  const int threads = at::get_num_threads();
  at::set_num_threads(2);
  constexpr int64_t kVocab = 4000, kChunk = 32;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const Problem p = problem_of(64, kVocab, type);
    for (const bool train : {false, true}) {
      const Peaks without = peaks(p, kChunk, train), with = peaks(p, kChunk, train, kCap);
      EXPECT_EQ(with.forward, without.forward);
      EXPECT_LE(with.backward - without.backward,
                3 * kVocab * static_cast<int64_t>(at::elementSize(type)));
    }
  }
  at::set_num_threads(threads);
}

TEST(Head, HoldsNoMoreThanTheLogitsMemoryWhenNothingIsSaid) {
  constexpr int64_t kVocab = 150'000, kRow = kVocab * 2, kRows = kLogitBytes / kRow / 16 * 16;
  const Peaks many = peaks(problem_of(2 * kRows, kVocab, at::kBFloat16), 0, false);
  EXPECT_LE(many.forward, kLogitBytes + kLogitBytes / 4);
  EXPECT_LE(many.backward, kLogitBytes + kLogitBytes / 4);
  EXPECT_GE(many.forward, kRows * kRow);
}

TEST(Head, TakesAsManyRowsAtATimeAsTheLogitsMemoryHolds) {
  Problem p;
  const int64_t vocab = kLogitBytes / 4;  // two rows in bf16
  const auto hidden = at::ones({12, 1}, at::kBFloat16),
             weight = at::ones({vocab, 1}, at::kBFloat16);
  std::vector<size_t> sizes;
  const auto note = [&](int64_t, std::span<const float> logprobs, std::span<float> grad) {
    sizes.push_back(logprobs.size());
    std::fill(grad.begin(), grad.end(), 0.0f);
  };
  head_backward(hidden, {weight}, p.targets, note, p.rows);
  EXPECT_EQ(sizes, std::vector<size_t>(4, 2));
}

}  // namespace
}  // namespace twinkle::nn
