// Losses of heads of labels against their formulas in float64, and against finite differences of
// their own values.
#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/base/error_for_test.h"
#include "twinkle/loss/loss.h"

namespace twinkle::loss {
namespace {

Inputs of_labels(const std::vector<double>& logits, int64_t num_labels, Extras extras) {
  const auto n = static_cast<int64_t>(logits.size());
  Inputs in{.logprobs = at::tensor(logits, at::kDouble), .weights = at::ones({n})};
  for (int64_t begin = 0; begin <= n; begin += num_labels) in.cu_seqlens.push_back(begin);
  in.extras = std::move(extras);
  return in;
}

Output run_of(const char* name, const Inputs& in, const char* options = "{}") {
  return run(find(name), in, parse_json(options, "options"));
}

void expect_differences(const char* name, Inputs in, const char* options = "{}") {
  const at::Tensor grad = run_of(name, in, options).grad, start = in.logprobs;
  for (int64_t i = 0; i < start.numel(); ++i) {
    const auto moved = [&](double by) {
      in.logprobs = start.clone();
      in.logprobs[i] += by;
      return run_of(name, in, options).loss;
    };
    EXPECT_NEAR(grad[i].item<double>(), (moved(1e-6) - moved(-1e-6)) / 2e-6, 1e-7)
        << name << options << " " << i;
  }
}

const std::vector<double> kScores{0.5, -0.25, 1.0, 2.0};

TEST(LabelLosses, RewardsAreBradleyTerrysWithMarginAndCentre) {
  const auto term = [](double margin) { return std::log1p(std::exp(-margin)); };
  const Inputs plain = of_labels(kScores, 1, {});
  const Inputs apart = of_labels(kScores, 1, {{"margin", at::tensor({0.5F, 9.0F, 2.0F, 9.0F})}});
  constexpr const char* kCentred = R"({"center_rewards_coefficient": 0.1})";
  EXPECT_NEAR(run_of("RewardLoss", plain).loss, (term(0.75) + term(-1)) / 2, 1e-12);
  EXPECT_NEAR(run_of("reward", apart).loss, (term(0.25) + term(-3)) / 2, 1e-12);
  EXPECT_NEAR(run_of("reward", plain, kCentred).loss,
              (term(0.75) + term(-1)) / 2 + 0.1 * (0.0625 + 9) / 2, 1e-12);
  EXPECT_EQ(run_of("reward", plain).num_tokens, 1);
  expect_differences("RewardLoss", plain);
  expect_differences("RewardLoss", apart, kCentred);
}

TEST(LabelLosses, ClassesAreChosenBySoftmaxAndNumbersBySquares) {
  const std::vector<double> logits{0.3, -1.0, 2.0, 0.0, 4.0, -0.5};
  const Inputs classes = of_labels(logits, 3, {{"label", at::tensor({2.0F, 0.0F})}});
  const auto lse = [](double a, double b, double c) {
    return std::log(std::exp(a) + std::exp(b) + std::exp(c));
  };
  EXPECT_NEAR(run_of("ClassificationLoss", classes).loss,
              (lse(0.3, -1, 2) - 2.0 + lse(0, 4, -0.5) - 0.0) / 2, 1e-12);
  expect_differences("ClassificationLoss", classes);
  constexpr const char* kNumbers = R"({"problem_type": "regression"})";
  const Inputs numbers = of_labels({0.5, -2.0}, 1, {{"label", at::tensor({1.0F, -1.5F})}});
  EXPECT_NEAR(run_of("classification", numbers, kNumbers).loss, (0.25 + 0.25) / 2, 1e-12);
  expect_differences("classification", numbers, kNumbers);
  const Inputs far = of_labels({1e4, -1e4}, 2, {{"label", at::tensor({1.0F})}});
  EXPECT_EQ(run_of("classification", far).loss, 2e4) << "exp(1e4) is infinite";
}

TEST(LabelLosses, NameWhatTheyCannotTake) {
  const auto text = [](const char* name, const Inputs& in, const char* options = "{}") {
    return invalid_of([&] { run_of(name, in, options); });
  };
  EXPECT_EQ(text("RewardLoss", of_labels({1, 2, 3}, 1, {})),
            "loss: RewardLoss needs pairs, each chosen reply followed by its rejected one, but "
            "there are 3 sequences: pass an even number of them");
  EXPECT_EQ(text("RewardLoss", of_labels({1, 2, 3, 4}, 2, {})),
            "loss: RewardLoss needs one score of a sequence, but 2 sequences have 4: give the "
            "adapter a head of num_labels 1");
  EXPECT_EQ(text("ClassificationLoss", of_labels({1, 2}, 2, {{"label", at::tensor({2.0F})}})),
            "loss: label of sequence 0 is 2, it must be an integer from 0 to 1");
  EXPECT_EQ(text("ClassificationLoss", of_labels({1, 2}, 2, {{"label", at::tensor({0.5F})}})),
            "loss: label of sequence 0 is 0.5, it must be an integer from 0 to 1");
  EXPECT_EQ(text("ClassificationLoss", of_labels({1}, 1, {{"label", at::tensor({0.0F})}})),
            "loss: ClassificationLoss has one label to choose from; give the adapter a head of "
            "num_labels 2 or more, or set problem_type 'regression'");
  EXPECT_EQ(text("ClassificationLoss", of_labels({1, 2}, 2, {{"label", at::tensor({0.0F})}}),
                 R"({"problem_type": "regression"})"),
            "loss: problem_type is 'regression', but a sequence has 2 scores; give the adapter a "
            "head of num_labels 1");
  EXPECT_EQ(text("ClassificationLoss", of_labels({1, 2}, 2, {})),
            "loss: classification needs 'label', pass it with the batch");
  EXPECT_EQ(text("ClassificationLoss", of_labels({1, 2}, 2, {}),
                 R"({"problem_type": "multi_label_classification"})"),
            "loss: problem_type is 'multi_label_classification', it must be "
            "'single_label_classification' or 'regression'");
}

}  // namespace
}  // namespace twinkle::loss
