#include "twinkle/metric/metric.h"

#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/base/error_for_test.h"

namespace twinkle::metric {
namespace {

at::Tensor row(std::vector<double> values) { return at::tensor(values, at::kDouble); }

JsonObject told_of(std::string_view name, const Batch& batch, const JsonObject& options = {}) {
  const auto metric = make(name, options);
  metric->accumulate(batch);
  return metric->calculate();
}

// The names and numbers of `told`, in order, are those of `expected`.
void expect_numbers(const JsonObject& told,
                    const std::vector<std::pair<std::string, double>>& expected) {
  ASSERT_EQ(told.size(), expected.size()) << boost::json::serialize(told);
  size_t i = 0;
  for (const auto& [name, value] : told) {
    EXPECT_EQ(std::string_view(name), expected[i].first);
    EXPECT_NEAR(value.to_number<double>(), expected[i].second, 1e-12) << expected[i].first;
    ++i;
  }
}

TEST(Metric, IsFoundByTheNameOfItsClass) {
  std::string names;
  for (const Kind& kind : all()) names.append(kind.class_name).append(" ");
  EXPECT_EQ(names,
            "Accuracy LossMetric TrainMetric EmbeddingMetric GRPOMetric PPOMetric GSPOMetric "
            "CISPOMetric DPOMetric RewardMetric PPOValueMetric ");
  EXPECT_EQ(invalid_of([] { find("GRPOMetrics"); }),
            "metric: 'GRPOMetrics' is no metric; did you mean 'GRPOMetric'?");
}

TEST(Metric, ToldNothingTellsNothing) {
  for (const Kind& kind : all()) {
    EXPECT_TRUE(make(kind.class_name)->calculate().empty()) << kind.class_name;
    if (kind.class_name == "TrainMetric") continue;  // a batch is news to it, whatever it has
    EXPECT_TRUE(told_of(kind.class_name, {}).empty()) << kind.class_name;
  }
}

TEST(Metric, AnOptionThatCannotBeIsNamedWithItsLimits) {
  const auto text = [](std::string_view name, const JsonObject& options) {
    return invalid_of([&] { make(name, options); });
  };
  EXPECT_EQ(text("DPOMetric", {{"beta", 0}}), "metric: beta is 0, it must be a number above 0");
  EXPECT_EQ(text("GSPOMetric", {{"epsilon_high", "a"}}),
            "metric: epsilon_high is 'a', it must be a number of at least 0");
  EXPECT_EQ(text("GRPOMetric", {{"top_k_kl", nullptr}}),
            "metric: top_k_kl is null, it must be an integer of at least 0");
  EXPECT_EQ(text("PPOValueMetric", {{"epsilon", -1}}),
            "metric: epsilon is -1, it must be a number above 0 or 'inf'");
  EXPECT_EQ(text("LossMetric", {{"beta", 1}}),
            "metric: LossMetric has no option 'beta', it has none");
  EXPECT_EQ(text("DPOMetric", {{"alpha", 1}}),
            "metric: DPOMetric has no option 'alpha', it has beta");
  make("GRPOMetric", {{"epsilon_high", nullptr}});  // epsilon, then
  make("PPOValueMetric", {{"epsilon", INFINITY}});
}

TEST(Metric, ATensorOfAnotherLengthIsRefusedAndNothingCounts) {
  const auto metric = make("DPOMetric");
  const Batch batch{.tensors = {{"logps", row({-1, -2})}, {"ref_sums", row({-1})}},
                    .numbers = {},
                    .counts = {1, 1}};
  EXPECT_EQ(invalid_of([&] { metric->accumulate(batch); }),
            "metric: ref_sums has 1 entries, it must have one for each of 2 sequences");
  EXPECT_EQ(invalid_of([&] {
              metric->accumulate({.tensors = {{"logps", row({-1, -2})}}, .counts = {1}});
            }),
            "metric: logps has 2 entries, it must have one for each of 1 labels");
  EXPECT_TRUE(metric->calculate().empty());
}

TEST(Accuracy, IsTheShareOfLabelsThatAreChosen) {
  Batch batch{.tensors = {{"labels", row({1, -100, 3, 4})}, {"predictions", row({1, -100, 2, 4})}}};
  expect_numbers(told_of("Accuracy", batch),
                 {{"accuracy", 2.0 / 3}, {"correct_tokens", 2}, {"total_tokens", 3}});
  batch.tensors["completion_mask"] = row({0, 1, 1, 1});
  expect_numbers(told_of("Accuracy", batch),
                 {{"accuracy", 0.5}, {"correct_tokens", 1}, {"total_tokens", 2}});
  batch.tensors["predictions"] = row({1, 2});
  EXPECT_EQ(invalid_of([&] { told_of("Accuracy", batch); }),
            "metric: Accuracy has predictions of the shape [2], but labels of [4]: there must be "
            "one for each label");
}

TEST(LossMetric, IsTheMeanOverTokensOfASumAndOverBatchesOfMeans) {
  const auto metric = make("LossMetric");
  metric->accumulate({.numbers = {{"loss", 6}, {"num_tokens", 3}, {"loss_tokens", 3}}});
  metric->accumulate({.numbers = {{"loss", 2.0}, {"num_tokens", 1}, {"loss_tokens", 1}}});
  metric->on_step({.grad_norm = 0.5, .lr = 1e-3, .iters = 1});
  expect_numbers(metric->calculate(), {{"loss", 2}, {"num_tokens", 4}, {"grad_norm", 0.5}});
  EXPECT_TRUE(metric->calculate().at("num_tokens").is_int64());
  metric->reset();
  expect_numbers(metric->calculate(), {{"grad_norm", 0.5}});
  const Batch summed{.tensors = {{"labels", row({1, -100, 2, 0})}},
                     .numbers = {{"loss", 6.0}, {"loss_reduction", "sum"}}};
  expect_numbers(told_of("LossMetric", summed), {{"loss", 2}, {"num_tokens", 0}});
}

TEST(TrainMetric, CountsStepsAndTokensSinceTheResetAndTimeSinceTheFirstBatch) {
  const auto metric = make("TrainMetric");
  const double started = 1.0;  // long ago, by the steady clock
  metric->accumulate({.numbers = {{"started", started}, {"seq_tokens", 10}, {"lr", 0.25}}});
  EXPECT_EQ(metric->calculate().at("learning rate"), Json(0.25));
  metric->on_step({.grad_norm = {}, .lr = 0.5, .iters = 1});
  metric->accumulate({.numbers = {{"started", started}, {"seq_tokens", 20}, {"lr", 0.125}}});
  const JsonObject told = metric->calculate();
  EXPECT_EQ(told.at("lr"), Json(0.5)) << "of the last step";
  EXPECT_EQ(told.at("iters"), Json(1));
  EXPECT_NEAR(told.at("tokens/s").get_double() / told.at("speed").get_double(), 30, 1e-9);
  EXPECT_GT(told.at("total time elapse").get_double(), 0);
  metric->reset();
  EXPECT_EQ(metric->calculate().at("tokens/s"), Json(0.0));
}

TEST(TrainMetric, OfAScriptTellsTheRateOfEachGroupOfParameters) {
  const Batch batch{
      .numbers = {{"lr", {0.1, 0.2}}, {"step", 10}, {"gradient_accumulation_steps", 3}}};
  const JsonObject told = told_of("TrainMetric", batch);
  EXPECT_EQ(told.at("learning rate(param group 1)"), Json(0.1));
  EXPECT_EQ(told.at("learning rate(param group 2)"), Json(0.2));
  EXPECT_EQ(told.at("iters"), Json(3));
  EXPECT_EQ(
      invalid_of([] { told_of("TrainMetric", {.numbers = {{"gradient_accumulation_steps", 0}}}); }),
      "metric: gradient_accumulation_steps is 0, it must be an integer of at least 1");
}

TEST(EmbeddingMetric, ComparesAnchorsWithTheirOwnAndOtherPositives) {
  // Anchors at 0 and 2; cosines of the first to the positives are 0.6 and 0, of the other 0.8, 1.
  const at::Tensor rows = at::tensor({3.0, 0.0, 0.6, 0.8, 0.0, 2.0, 0.0, 1.0}).view({4, 2});
  const Batch batch{.tensors = {{"embeddings", rows.to(at::kDouble)}, {"anchors", row({0, 2})}},
                    .numbers = {{"loss", 1.5}}};
  expect_numbers(told_of("EmbeddingMetric", batch), {{"pos_sim", 0.8},
                                                     {"neg_sim", 0.4},
                                                     {"loss", 1.5},
                                                     {"pos_sim_min", 0.6},
                                                     {"pos_sim_max", 1.0}});
}

TEST(RewardMetric, ComparesTheScoresOfPairs) {
  const Batch batch{.tensors = {{"logits", row({2, 1, -1, 0.5}).view({4, 1})}}};
  expect_numbers(told_of("RewardMetric", batch), {{"rewards/chosen", 0.5},
                                                  {"rewards/rejected", 0.75},
                                                  {"rewards/margins", -0.25},
                                                  {"rewards/accuracies", 50}});
  EXPECT_TRUE(told_of("RewardMetric", {.tensors = {{"logits", at::zeros({2, 3})}}}).empty());
  EXPECT_EQ(
      invalid_of([] { told_of("RewardMetric", {.tensors = {{"logits", row({1}).view({1, 1})}}}); }),
      "metric: RewardMetric needs pairs, but there are 1 sequences: pass an even number of "
      "them");
}

TEST(DpoMetric, ComparesWhatRepliesGainedOverTheReference) {
  Batch batch{.tensors = {{"logps", row({-1, -2, -3, -0.5, -0.5, -4})}}, .counts = {2, 1, 2, 1}};
  expect_numbers(told_of("DPOMetric", batch), {{"logps/chosen", -2}, {"logps/rejected", -3.5}});
  batch.tensors["ref_sums"] = row({-4, -2, -1, -6});
  // Gains: 1, -1, 0, 2, times beta.
  expect_numbers(told_of("DPOMetric", batch, {{"beta", 0.5}}), {{"logps/chosen", -2},
                                                                {"logps/rejected", -3.5},
                                                                {"logps/ref_chosen", -2.5},
                                                                {"logps/ref_rejected", -4},
                                                                {"rewards/chosen", 0.25},
                                                                {"rewards/rejected", 0.25},
                                                                {"rewards/margins", 0},
                                                                {"rewards/accuracies", 50}});
  batch.counts = {2, 1, 3};
  batch.tensors.erase("ref_sums");
  EXPECT_EQ(invalid_of([&] { told_of("DPOMetric", batch); }),
            "metric: DPOMetric needs pairs, but there are 3 sequences: pass an even number of "
            "them");
}

TEST(PpoValueMetric, ExplainsReturnsOfAllBatches) {
  const auto metric = make("PPOValueMetric", {{"epsilon", 0.5}});
  metric->accumulate(
      {.tensors = {{"values", row({1, 2})}, {"old_values", row({0, 2})}, {"returns", row({2, 2})}},
       .counts = {2}});
  metric->accumulate({.tensors = {{"values", row({3})},
                                  {"old_values", row({3})},
                                  {"returns", row({5})},
                                  {"advantages", row({1})}},
                      .counts = {1}});
  metric->accumulate({.tensors = {{"values", row({7})}, {"old_values", row({3})}}, .counts = {1}});
  // R - V: 1, 0, 2; R: 2, 2, 5; advantages: 2, 0, 1. The first value is clipped to 0.5.
  expect_numbers(metric->calculate(), {{"train/value_mean", 2},
                                       {"train/return_mean", 3},
                                       {"train/value_clip_ratio", 1.0 / 3},
                                       {"train/explained_variance", 1 - (2.0 / 3) / 2},
                                       {"train/advantage_mean", 1},
                                       {"train/advantage_std", std::sqrt(2.0 / 3)}});
  const Batch equal{
      .tensors = {{"values", row({1, 2})}, {"old_values", row({0, 2})}, {"returns", row({2, 2})}},
      .counts = {2}};
  EXPECT_TRUE(
      std::isnan(told_of("PPOValueMetric", equal).at("train/explained_variance").get_double()));
}

}  // namespace
}  // namespace twinkle::metric
