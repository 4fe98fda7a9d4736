// A head of labels against matrix products in float64, and its rows against themselves alone.
#include "twinkle/lora/labels/label_head.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace twinkle::lora {
namespace {

struct LabelHeadCase : testing::TestWithParam<at::ScalarType> {
  LabelHeadCase() { at::manual_seed(6); }

  LabelHead head{at::randn({3, 16}), {}};
  at::Tensor hidden = at::randn({9, 16}).to(GetParam());
  std::vector<int64_t> last{2, 3, 8};
  std::vector<float> grads{0.5F, -1.0F, 0.25F, 2.0F, 0.0F, 1.0F, -0.125F, 3.0F, 0.0F};

  at::Tensor rows() const { return hidden.index_select(0, at::tensor(last)).to(at::kDouble); }
  at::Tensor given() const {
    return at::tensor(std::vector<double>(grads.begin(), grads.end())).view({3, 3});
  }
};

TEST_P(LabelHeadCase, LogitsAndGradientsAreTheProducts) {
  const at::Tensor weight = head.weight.to(at::kDouble);
  const std::vector<float> logits = label_logits(head, hidden, last);
  const at::Tensor want = rows().matmul(weight.t()).flatten();
  for (size_t i = 0; i < logits.size(); ++i)
    EXPECT_FLOAT_EQ(logits[i], want[static_cast<int64_t>(i)].item<float>());
  at::Tensor dhidden = at::ones_like(hidden);
  add_label_grads(head, last, grads, dhidden);
  at::Tensor moved = at::ones({9, 16}, at::kDouble);
  moved.index_add_(0, at::tensor(last), given().matmul(weight));
  EXPECT_TRUE(
      at::allclose(dhidden.to(at::kDouble), moved, 0, GetParam() == at::kFloat ? 1e-5 : 5e-2));
  head.grad = at::zeros_like(head.weight);
  for (size_t s = 0; s < 3; ++s)
    add_weight_grad(head, hidden, last[s], std::span(grads).subspan(3 * s, 3));
  EXPECT_TRUE(at::allclose(head.grad.to(at::kDouble), given().t().matmul(rows()), 1e-6, 1e-6));
}

TEST_P(LabelHeadCase, ASequencesLogitsHaveTheSameBitsAlone) {
  const std::vector<float> all = label_logits(head, hidden, last);
  for (size_t s = 0; s < 3; ++s) {
    const std::vector<float> alone = label_logits(head, hidden, {last[s]});
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + 3 * static_cast<int64_t>(s)));
  }
}

INSTANTIATE_TEST_SUITE_P(Types, LabelHeadCase, testing::Values(at::kFloat, at::kBFloat16));

TEST(LabelHead, ANewOneIsDrawnWithTransformersDeviation) {
  const at::Tensor weight = new_label_weight(4, 4096, 7);
  EXPECT_NEAR(weight.std().item<double>(), 0.02, 5e-4);
  EXPECT_NEAR(weight.mean().item<double>(), 0, 1e-3);
  EXPECT_TRUE(at::equal(weight, new_label_weight(4, 4096, 7)));
  EXPECT_FALSE(at::equal(weight, new_label_weight(4, 4096, 8)));
}

}  // namespace
}  // namespace twinkle::lora
