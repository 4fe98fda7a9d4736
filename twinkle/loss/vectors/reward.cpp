// The loss of a reward model (Bradley and Terry 1952; Ouyang et al. 2022, arXiv 2203.02155, eq. 1):
// -log sigmoid(chosen - rejected) of scores [B] or [B, 1], of which a pair's follow each other, the
// mean over pairs; and center_rewards_coefficient (0) times the mean of (chosen + rejected)^2
// (Eisenstein et al. 2023, arXiv 2312.09244), which keeps scores near 0.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "twinkle/loss/options.h"
#include "twinkle/loss/vectors/vectors.h"

namespace twinkle::loss {
namespace {

struct Options {
  double center = 0;

  static constexpr auto fields() {
    return std::tuple{option("center_rewards_coefficient", &Options::center, at_least(0),
                             "of the squared sum of a pair's scores")};
  }
};

OfVectors run(const at::Tensor& vectors, const VectorExtras&, const Json& json) {
  const auto o = parsed<Options>(json, "RewardLoss");
  require(
      vectors.numel() % 2 == 0 && vectors.numel() == vectors.size(0), Code::kInvalid,
      "loss: RewardLoss needs a score of each sequence, of pairs of a chosen and a rejected one, "
      "but it has scores of shape ",
      vectors.sizes());
  const at::AutoGradMode enabled(true);
  const at::Tensor leaf = vectors.detach().requires_grad_(true);
  const at::Tensor pairs = leaf.to(at::kDouble).reshape({-1, 2});
  const at::Tensor chosen = pairs.select(1, 0), rejected = pairs.select(1, 1);
  at::Tensor loss = -at::log_sigmoid(chosen - rejected).mean();
  if (o.center > 0) loss = loss + o.center * (chosen + rejected).square().mean();
  return {loss.item<double>(), torch::autograd::grad({loss}, {leaf}).at(0)};
}

}  // namespace

VectorLoss reward() {
  return {.class_name = "RewardLoss", .options = described<Options>, .run = run};
}

}  // namespace twinkle::loss
