#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/optim/trajectory_for_test.h"

namespace twinkle::optim {
namespace {

// torch.optim.Muon's step in float64.
struct Reference {
  at::Tensor value, mean;
  double lr, decay, momentum;
  bool nesterov, matches_adamw;

  void step(const at::Tensor& g) {
    mean = mean * momentum + g * (1 - momentum);
    at::Tensor x = nesterov ? g * (1 - momentum) + mean * momentum : mean;
    const double rows = static_cast<double>(x.size(0)), columns = static_cast<double>(x.size(1));
    if (rows > columns) x = x.t();
    x = x / x.norm().clamp_min(1e-7);
    for (int i = 0; i < 5; ++i) {
      const at::Tensor gram = x.matmul(x.t());
      x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram.matmul(gram)).matmul(x);
    }
    if (rows > columns) x = x.t();
    const double by = matches_adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                    : std::sqrt(std::max(1.0, rows / columns));
    value = value * (1 - lr * decay) - lr * by * x;
  }
};

void expect_formula(at::IntArrayRef sizes, const JsonObject& options, Reference want) {
  at::manual_seed(3);
  Param p{"w", at::randn(sizes), {}};
  want.value = p.value.to(at::kDouble);
  want.mean = at::zeros(sizes, at::kDouble);
  const auto muon = make("Muon", options);
  for (int step = 0; step < kSteps; ++step) {
    p.grad = at::randn(sizes) * 8;
    want.step(p.grad.to(at::kDouble) / 8);
    muon->step({&p, 1}, muon->lr(), 0.125);
  }
  EXPECT_LT((p.value - want.value).abs().max().item<double>(), 2e-5) << sizes;
}

TEST(Muon, TwentyStepsAreTorchsFormulaInFloat64) {
  const std::vector<std::vector<int64_t>> all = {{4, 37}, {37, 4}, {8, 8}};
  for (const std::vector<int64_t>& sizes : all) {
    expect_formula(sizes, {{"lr", 2e-2}, {"weight_decay", 0.1}},
                   {.lr = 2e-2, .decay = 0.1, .momentum = 0.95, .nesterov = true});
    expect_formula(
        sizes,
        {{"lr", 1e-2}, {"momentum", 0.5}, {"nesterov", false}, {"adjust_lr_fn", "match_rms_adamw"}},
        {.lr = 1e-2, .decay = 0.01, .momentum = 0.5, .nesterov = false, .matches_adamw = true});
  }
}

TEST(Muon, AMatrixGetsTheSameBitsAloneAmongOthersAndOnAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  const auto train = [](int threads, bool together) {
    at::set_num_threads(threads);
    at::manual_seed(5);
    std::vector<Param> params = {{"a", at::randn({6, 300}), {}}, {"b", at::randn({500, 6}), {}}};
    const auto muon = make("Muon", JsonObject{{"lr", 1e-2}});
    for (int step = 0; step < 3; ++step) {
      for (Param& p : params) p.grad = at::randn(p.value.sizes());
      if (together) muon->step(params, 1e-2);
      for (const Param& p : params)
        if (!together) muon->step({&p, 1}, 1e-2);
    }
    return params;
  };
  const std::vector<Param> want = train(1, true);
  for (const auto& got : {train(2, true), train(2, false), train(1, false)})
    for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(got[i].value, want[i].value));
  at::set_num_threads(before);
}

TEST(Muon, AGradientOfZerosMovesNothing) {
  Param p{"w", at::ones({3, 5}), at::zeros({3, 5})};
  make("Muon", JsonObject{{"lr", 0.1}, {"weight_decay", 0}})->step({&p, 1}, 0.1);
  EXPECT_TRUE(at::equal(p.value, at::ones({3, 5})));
}

TEST(Muon, RefusesWhatItCannotUpdate) {
  const Param bias{"norm.weight", at::ones({3}), at::ones({3})};
  EXPECT_EQ(twinkle::invalid_of([&] { make("Muon")->step({&bias, 1}, 0.1); }),
            "optim: Muon updates matrices, but norm.weight has shape [3]: train an adapter, whose "
            "factors are matrices, or take AdamW");
  EXPECT_EQ(error_of("Muon", R"({"adjust_lr_fn":"none"})"),
            "optim: adjust_lr_fn of Muon is 'none', it must be 'original' or 'match_rms_adamw'");
  EXPECT_EQ(error_of("Muon", R"({"ns_steps":100})"),
            "optim: ns_steps of Muon is 100, it must be at least 1 and below 100");
  EXPECT_EQ(error_of("Muon", R"({"ns_coefficients":[1,2]})"),
            "optim: ns_coefficients of Muon is [1,2], it must be three numbers");
}

TEST(LoraPlus, MultipliesTheRateOfB) {
  for (const char* name : {"AdamW", "SGD", "Lion", "Muon"}) {
    const auto moved = [&](double ratio, double lr) {
      std::vector<Param> params = {{"a", at::zeros({2, 4}), at::ones({2, 4})},
                                   {"b", at::zeros({4, 2}), at::ones({4, 2})}};
      params[1].is_b = true;
      make(name, JsonObject{{"loraplus_lr_ratio", ratio}, {"lr", lr}, {"weight_decay", 0}})
          ->step(params, lr);
      return params;
    };
    const auto plain = moved(1, 0.01), fast = moved(1, 0.16), plus = moved(16, 0.01);
    EXPECT_TRUE(at::equal(plus[0].value, plain[0].value)) << name;
    EXPECT_TRUE(at::allclose(plus[1].value, fast[1].value, 1e-6)) << name;
  }
  const Param weight{"w", at::ones({3, 3}), at::ones({3, 3})};
  EXPECT_EQ(twinkle::invalid_of([&] {
              make("AdamW", JsonObject{{"loraplus_lr_ratio", 16}})->step({&weight, 1}, 0.1);
            }),
            "optim: loraplus_lr_ratio is 16, but there is no LoRA factor B: train an adapter, or "
            "leave it out");
  EXPECT_EQ(error_of("SGD", R"({"loraplus_lr_ratio":0})"),
            "optim: loraplus_lr_ratio of SGD is 0, it must be above 0");
}

}  // namespace
}  // namespace twinkle::optim
