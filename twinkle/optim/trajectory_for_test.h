// Test support: our trajectory beside torch::optim's, and the text of a refusal.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "twinkle/optim/optimizer.h"

#include "twinkle/base/error_for_test.h"

namespace twinkle::optim {

inline constexpr int kSteps = 20;

// Twenty steps of ours in float32 and torch's in float64, so that only our rounding counts, on two
// parameters, one of them without decay; the step scales our gradients by 1/8.
template <class Torchs, class TorchsOptions>
void expect_same_trajectory(std::string_view name, const JsonObject& options,
                            const TorchsOptions& torchs_options) {
  at::manual_seed(1);
  std::vector<Param> params = {{"w", at::randn({33, 5}), at::Tensor(), true},
                               {"bias", at::randn({7}), at::Tensor(), false}};
  std::vector<at::Tensor> theirs;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const Param& param : params) {
    theirs.push_back(param.value.to(at::kDouble).requires_grad_(true));
    auto group_options = std::make_unique<TorchsOptions>(torchs_options);
    if (!param.decay) group_options->weight_decay(0);
    groups.emplace_back(std::vector<at::Tensor>{theirs.back()}, std::move(group_options));
  }
  Torchs torchs(groups, torchs_options);
  const std::unique_ptr<Optimizer> ours = make(name, options);
  for (int step = 0; step < kSteps; ++step) {
    for (size_t i = 0; i < params.size(); ++i) {
      params[i].grad = at::randn(params[i].value.sizes()) * 8;
      theirs[i].mutable_grad() = params[i].grad.to(at::kDouble) / 8;
    }
    ours->step(params, ours->lr(), 0.125);
    torchs.step();
  }
  for (size_t i = 0; i < params.size(); ++i)
    EXPECT_LT((params[i].value - theirs[i].detach()).abs().max().item<double>(), 1e-6)
        << name << " " << params[i].name;
}

inline std::string error_of(const char* name, const char* options) {
  return twinkle::invalid_of([&] { make(name, parse_json(options, "options")); });
}

}  // namespace twinkle::optim
