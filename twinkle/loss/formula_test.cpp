#include "twinkle/loss/formula.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/loss/reduce.h"

namespace twinkle::loss {
namespace {

Inputs formula_example() {
  return {.logprobs = at::tensor({-1.0F, -2.0F, -3.0F}),
          .weights = at::ones({3}),
          .cu_seqlens = {0, 1, 1, 3}};
}

TEST(Formula, GivesValueAndGradientOfAFunctionOfSequenceSums) {
  const at::NoGradGuard inside_a_forward;
  const Inputs in = formula_example();
  const Output out = differentiate(
      in, [&](const at::Tensor& lp) { return sequence_sums(lp, in.cu_seqlens).square().sum(); }, 5);
  EXPECT_EQ(out.loss, 1 + 25);
  EXPECT_EQ(out.num_tokens, 5);
  EXPECT_TRUE(at::equal(out.grad, at::tensor({-2.0F, -10.0F, -10.0F})));
  EXPECT_FALSE(out.grad.requires_grad());
}

TEST(Formula, AConstantHasNoGradient) {
  const Output out =
      differentiate(formula_example(), [](const at::Tensor&) { return at::ones({}); }, 0);
  EXPECT_EQ(out.loss, 1);
  EXPECT_TRUE(at::equal(out.grad, at::zeros({3})));
}

TEST(Formula, RefusesAResultThatIsNoScalar) {
  EXPECT_EQ(error_of([] {
              differentiate(formula_example(), [](const at::Tensor& lp) { return lp; }, 0);
            }),
            "loss: the formula's result has shape [3], it must be a scalar");
}

}  // namespace
}  // namespace twinkle::loss
