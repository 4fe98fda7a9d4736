#include "twinkle/optim/clip.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/api/include/torch/nn/utils/clip_grad.h>

#include <cmath>
#include <limits>

#include "twinkle/base/error_for_test.h"

namespace twinkle::optim {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<Param> clip_example() {
  at::manual_seed(5);
  std::vector<Param> params;
  for (const int64_t n : {1, 17, 40001, 300}) {
    params.push_back(
        {std::string("p").append(std::to_string(n)), at::randn({n}), at::randn({n}) * 3});
  }
  params.push_back({"without", at::ones({3}), at::Tensor()});
  return params;
}

TEST(Clip, NormAndFactorAreTorchsForEveryNormType) {
  for (const double norm_type : {2.0, 1.0, 3.5, kInf}) {
    const std::vector<Param> params = clip_example();
    std::vector<at::Tensor> torchs;
    for (const Param& p : params) {
      torchs.push_back(p.value.clone());
      if (p.grad.defined()) torchs.back().mutable_grad() = p.grad.clone();
    }
    const double norm = grad_norm(params, norm_type);
    const double expected = torch::nn::utils::clip_grad_norm_(torchs, 2.0, norm_type);
    EXPECT_NEAR(norm, expected, 1e-5 * expected) << norm_type;
    const double factor = clip_factor(norm, 2.0);
    EXPECT_TRUE(at::allclose(params[2].grad * factor, torchs[2].grad(), 1e-5, 1e-8)) << norm_type;
  }
}

TEST(Clip, PowersThatLeaveTheDoublesAreTakenOfTheGradientOverItsLargest) {
  std::vector<Param> params = clip_example();
  const double largest = grad_norm(params, kInf);
  for (const double norm_type : {700.0, 1e5, 1e300})
    EXPECT_NEAR(grad_norm(params, norm_type), largest, 0.01 * largest) << norm_type;
  for (Param& p : params) {
    if (p.grad.defined()) p.grad.mul_(1e-30F);
  }
  EXPECT_NEAR(grad_norm(params, 20), 1e-30 * grad_norm(clip_example(), 20), 1e-35);
}

TEST(Clip, ASmallNormIsLeftAlone) {
  EXPECT_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_EQ(clip_factor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_EQ(clip_factor(1e300, kInf), 1.0);
}

TEST(Clip, TheScaleMultipliesTheNorm) {
  const std::vector<Param> params = clip_example();
  EXPECT_DOUBLE_EQ(grad_norm(params, 2.0, -0.125), grad_norm(params) / 8);
}

TEST(Clip, NormDoesNotDependOnTheNumberOfThreads) {
  const std::vector<Param> params = clip_example();
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const double one = grad_norm(params);
  at::set_num_threads(2);
  const double two = grad_norm(params);
  at::set_num_threads(before);
  EXPECT_EQ(one, two);
}

TEST(Clip, RefusesANormThatIsNotFiniteAndNamesTheParameter) {
  for (const double norm_type : {2.0, 3.0, kInf})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), static_cast<float>(kInf)}) {
      std::vector<Param> params = clip_example();
      params[2].grad[39999] = bad;
      const std::string text = invalid_of([&] { grad_norm(params, norm_type); });
      EXPECT_EQ(text.find("optim: the gradient of p40001 has norm "), 0U) << text;
      EXPECT_NE(text.find("it must be finite; nothing was changed"), text.npos) << text;
    }
}

TEST(Clip, FiniteMeansEveryEntryOfEveryGradient) {
  EXPECT_TRUE(finite({}));
  std::vector<at::Tensor> grads{at::full({40001}, 3e38F), at::Tensor(), at::ones({3, 7})};
  EXPECT_TRUE(finite(grads)) << "their squares' sum too";
  for (const double bad : {kInf, -kInf, std::nan("")}) {
    grads[2] = at::ones({3, 7});
    grads[2][2][6] = bad;
    EXPECT_FALSE(finite(grads)) << bad;
  }
}

TEST(Clip, RefusesATotalThatIsNotFinite) {
  const std::string text = invalid_of([] { grad_norm(clip_example(), 2.0, kInf); });
  EXPECT_EQ(text,
            "optim: the norm of all gradients is inf, it must be finite; nothing was changed");
}

TEST(Clip, RefusesLimitsAndNormTypesOutOfRange) {
  EXPECT_EQ(invalid_of([] { clip_factor(1, -1); }),
            "optim: max_norm of clipping is -1, it must be at least 0, or infinity");
  EXPECT_EQ(invalid_of([] { clip_factor(1, std::nan("")); }),
            "optim: max_norm of clipping is nan, it must be at least 0, or infinity");
  EXPECT_EQ(invalid_of([] { grad_norm(clip_example(), 0); }),
            "optim: norm_type is 0, it must be above 0, or infinity");
}

}  // namespace
}  // namespace twinkle::optim
