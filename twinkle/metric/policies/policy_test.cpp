#include "twinkle/metric/policies/policy.h"

#include <gtest/gtest.h>

#include <cmath>

namespace twinkle::metric {
namespace {

const double kDoubled = std::log(2.0);  // d of a label whose ratio is 2

// Two sequences, of two labels and one, with the ratios 2, 1/2 and 1.
Batch ratios() {
  const auto tensor = [](std::vector<double> values) { return at::tensor(values, at::kDouble); };
  return {.tensors = {{"logps", tensor({-1, -1, -1})},
                      {"old_logps", tensor({-1 - kDoubled, -1 + kDoubled, -1})},
                      {"advantages", tensor({1, -1, 1})},
                      {"labels", tensor({7, 8, 9})},
                      {"positions", tensor({3, 4, 0})}},
          .numbers = {},
          .counts = {2, 1}};
}

JsonObject told_of_ratios(std::string_view name, const JsonObject& options = {}) {
  const auto metric = make(name, options);
  metric->accumulate(ratios());
  return metric->calculate();
}

double number(const JsonObject& told, const char* name) {
  return told.at(name).to_number<double>();
}

TEST(PolicyMetric, EveryNumberIsItsFormula) {
  const JsonObject told = told_of_ratios("GRPOMetric", {{"temperature", 0.5}});
  std::string names;
  for (const auto& [name, value] : told) names.append(std::string_view(name).substr(6)).append(" ");
  EXPECT_EQ(names,
            "mean_new_logp mean_old_logp logp_diff_mean approx_kl clip_ratio_low clip_ratio_high "
            "policy_confidence clip_ratio token_kl_max token_ratio_max ");
  EXPECT_DOUBLE_EQ(number(told, "train/mean_new_logp"), -0.5);
  EXPECT_DOUBLE_EQ(number(told, "train/mean_old_logp"), -0.5);
  EXPECT_DOUBLE_EQ(number(told, "train/policy_confidence"), std::exp(-0.5));
  EXPECT_NEAR(number(told, "train/logp_diff_mean"), 0, 1e-15);
  const double up = 2 - kDoubled - 1, down = 0.5 + kDoubled - 1;  // k3
  EXPECT_NEAR(number(told, "train/approx_kl"), (up + down) / 3, 1e-15);
  EXPECT_NEAR(number(told, "train/token_kl_max"), up, 1e-15);
  EXPECT_NEAR(number(told, "train/token_ratio_max"), 2, 1e-15);
  EXPECT_DOUBLE_EQ(number(told, "train/clip_ratio_low"), 1.0 / 3);
  EXPECT_DOUBLE_EQ(number(told, "train/clip_ratio_high"), 1.0 / 3);
  EXPECT_DOUBLE_EQ(number(told, "train/clip_ratio"), 2.0 / 3);
}

TEST(PolicyMetric, ALossThatClipsInAnotherWayHasOtherShares) {
  const std::vector<std::tuple<const char*, double, double>> shares = {
      {"PPOMetric", 1.0 / 3, 1.0 / 3}, {"GSPOMetric", 0, 0}, {"CISPOMetric", 0, 1.0 / 3}};
  for (const auto& [name, low, high] : shares) {
    const JsonObject told = told_of_ratios(name);
    EXPECT_DOUBLE_EQ(number(told, "train/clip_ratio_low"), low) << name;
    EXPECT_DOUBLE_EQ(number(told, "train/clip_ratio_high"), high) << name;
  }
  EXPECT_EQ(number(told_of_ratios("GRPOMetric", {{"epsilon_high", 1.5}}), "train/clip_ratio_high"),
            0);
  EXPECT_EQ(number(told_of_ratios("GRPOMetric", {{"epsilon", 0.6}}), "train/clip_ratio_low"), 0);
}

TEST(PolicyMetric, ASequenceIsClippedByItsMeans) {
  Batch batch = ratios();
  batch.counts = {1, 0, 2};  // the last: d -log(2) / 2, A -1/4
  batch.tensors["advantages"] = at::tensor({1.0, -1.0, 0.5}).to(at::kDouble);
  const auto metric = make("GSPOMetric");
  metric->accumulate(batch);
  EXPECT_DOUBLE_EQ(number(metric->calculate(), "train/clip_ratio_low"), 0.5);
  EXPECT_DOUBLE_EQ(number(metric->calculate(), "train/clip_ratio_high"), 0.5);
}

TEST(PolicyMetric, RecordsAreOfTheGreatestK3) {
  const auto metric = make("GRPOMetric", {{"top_k_kl", 5}});
  metric->accumulate(ratios());
  metric->accumulate(ratios());
  const JsonObject told = metric->calculate();
  const JsonArray& records = told.at("_high_kl_records").get_array();
  ASSERT_EQ(records.size(), 4U) << "none of the label whose k3 is 0";
  const JsonObject& last = records[3].get_object();
  EXPECT_EQ(last.at("gsi"), Json(2)) << "of the second batch";
  EXPECT_EQ(last.at("pos"), Json(4));
  EXPECT_EQ(last.at("token_id"), Json(8));
  EXPECT_NEAR(number(last, "ratio"), 0.5, 1e-15);
  EXPECT_NEAR(number(last, "kl"), 0.5 + kDoubled - 1, 1e-15);
  EXPECT_EQ(last.at("logp_new"), Json(-1.0));
  EXPECT_EQ(last.at("logp_old"), Json(-1 + kDoubled));
  EXPECT_EQ(records[0].get_object().at("token_id"), Json(7)) << "the greatest first";
  metric->reset();
  EXPECT_TRUE(metric->calculate().empty());
}

TEST(PolicyMetric, WhatWasNotGivenIsNotThere) {
  Batch batch = ratios();
  batch.tensors.erase("old_logps");
  batch.tensors["entropies"] = at::tensor({1.0, 2.0, 6.0}).to(at::kDouble);
  const auto metric = make("GRPOMetric");
  metric->accumulate(batch);
  const JsonObject told = metric->calculate();
  EXPECT_EQ(told.size(), 3U);
  EXPECT_DOUBLE_EQ(number(told, "train/entropy"), 3);
}

}  // namespace
}  // namespace twinkle::metric
