// Heads whose rows have several targets, against autograd in float64, and against heads with one.
#include "twinkle/nn/head/row_targets.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "twinkle/nn/rows_for_test.h"

namespace twinkle::nn {
namespace {

// Rows with 1, 4, 2, 3 and 1 targets; of the second and the fourth one token twice.
const std::vector<int64_t> kTargetRows{0, 2, 2, 2, 2, 3, 3, 7, 7, 7, 11};
const std::vector<int32_t> kIds{3, 0, 49, 0, 7, 21, 30, 2, 2, 2, 5};
const std::vector<float> kGrad{1, -2, 0.5f, 3, 0, 1, -1, 2, 0.25f, -4, 1};
const std::vector<float> kEntropyGrad{0, 1, 0, -0.5f, 2, 0.25f, -3, 0, 1, 0, 1};

struct RowProblem {
  Rows rows = rows_of({4, 5, 3}, {-1, -1, -1}, {0, 0, 0}, {1, 1, 1});
  at::Tensor hidden, weight;
  Targets targets{kTargetRows, kIds, {}};

  RowProblem(at::ScalarType type, float temperature) {
    at::manual_seed(5);
    hidden = at::randn({12, 8}, at::kDouble).to(type);
    weight = at::randn({50, 8}, at::kDouble).to(type);
    if (temperature != 1) targets.temperature.assign(kTargetRows.size(), temperature);
  }
};

struct RowAnswers {
  at::Tensor logprobs, entropies, dhidden, dweight;
};

// By autograd, with logits in `type`.
RowAnswers plain_rows(const RowProblem& p, double temperature, at::ScalarType type) {
  const auto h = p.hidden.to(type).requires_grad_(true), w = p.weight.to(type).requires_grad_(true);
  const auto logits = at::linear(h.index_select(0, at::tensor(kTargetRows)), w).to(at::kDouble);
  const auto logp = at::log_softmax(logits / temperature, 1);
  const auto picked = logp.gather(1, at::tensor(kIds).to(at::kLong).unsqueeze(1)).squeeze(1);
  const auto entropies = -(logp.exp() * logp).sum(1);
  const auto d = torch::autograd::grad(
      {picked, entropies}, {h, w},
      {at::tensor(kGrad).to(at::kDouble), at::tensor(kEntropyGrad).to(at::kDouble)});
  return {picked.detach(), entropies.detach(), d[0].to(at::kDouble), d[1].to(at::kDouble)};
}

RowAnswers our_rows(const RowProblem& p, int64_t chunk) {
  WeightGrad dw;
  const Linear head{p.weight, {}, &dw, nullptr, nullptr};
  const auto out =
      head_backward(p.hidden, head, p.targets,
                    [](int64_t first, std::span<const float> logprobs, std::span<float> grad) {
                      for (size_t i = 0; i < logprobs.size(); ++i)
                        grad[i] = kGrad[static_cast<size_t>(first) + i];
                    },
                    p.rows, {.entropy_grad = kEntropyGrad, .chunk = chunk});
  const auto forward = head_forward(p.hidden, Linear{p.weight}, p.targets, p.rows,
                                    {.entropy = true, .chunk = chunk + 1});
  EXPECT_EQ(out.logprobs, forward.logprobs);
  EXPECT_EQ(out.entropies, forward.entropies);
  return {at::tensor(out.logprobs).to(at::kDouble), at::tensor(out.entropies).to(at::kDouble),
          out.dhidden.to(at::kDouble), dw.sum.to(at::kDouble)};
}

class RowTargetsOfAHead : public testing::TestWithParam<at::ScalarType> {};

// In bfloat16 as near to it as ATen is, which rounds logits and gradients, too, with a tenth of
// room.
TEST_P(RowTargetsOfAHead, HaveTheLogProbabilitiesAndTheGradientOfAutogradInFloat64) {
  for (const float t : {1.0f, 0.5f}) {
    const RowProblem p(GetParam(), t);
    const RowAnswers want = plain_rows(p, t, at::kDouble), rounded = plain_rows(p, t, GetParam());
    const auto near = [&](at::Tensor RowAnswers::* of, const at::Tensor& mine) {
      const auto error = [&](const at::Tensor& x) {
        return ((x - want.*of).norm() / (want.*of).norm()).item<double>();
      };
      EXPECT_LT(error(mine), 1.1 * error(rounded.*of) + 1e-6);
    };
    for (const int64_t chunk : {1, 2, 5}) {
      const RowAnswers mine = our_rows(p, chunk);
      near(&RowAnswers::logprobs, mine.logprobs);
      near(&RowAnswers::entropies, mine.entropies);
      near(&RowAnswers::dhidden, mine.dhidden);
      near(&RowAnswers::dweight, mine.dweight);
    }
  }
}

TEST_P(RowTargetsOfAHead, HaveTheBitsThatEachHasAlone) {
  const RowProblem p(GetParam(), 0.7f);
  const HeadOptions options{.entropy = true, .chunk = 5};
  const HeadOutput all = head_forward(p.hidden, Linear{p.weight}, p.targets, p.rows, options);
  for (size_t k = 0; k < 4; ++k) {  // each row's k-th target, or its first
    Targets some;
    std::vector<float> logprobs, entropies;
    for (size_t i = 0; i < kTargetRows.size(); ++i) {
      if (i > 0 && kTargetRows[i] == kTargetRows[i - 1]) continue;
      const size_t j =
          i + k < kTargetRows.size() && kTargetRows[i + k] == kTargetRows[i] ? i + k : i;
      some.rows.push_back(kTargetRows[j]);
      some.ids.push_back(kIds[j]);
      some.temperature.push_back(0.7f);
      logprobs.push_back(all.logprobs[j]);
      entropies.push_back(all.entropies[j]);
    }
    const HeadOutput alone = head_forward(p.hidden, Linear{p.weight}, some, p.rows, options);
    EXPECT_EQ(alone.logprobs, logprobs);
    EXPECT_EQ(alone.entropies, entropies);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, RowTargetsOfAHead,
                         testing::Values(at::kDouble, at::kFloat, at::kBFloat16));

}  // namespace
}  // namespace twinkle::nn
