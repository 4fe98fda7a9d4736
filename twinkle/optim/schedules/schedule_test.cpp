#include "twinkle/optim/schedules/schedule.h"

#include <gtest/gtest.h>

#include <vector>

#include "twinkle/base/error_for_test.h"

namespace twinkle::optim {
namespace {

std::vector<double> rates(const char* name, const char* options, int64_t n) {
  const Schedule schedule = make_schedule(name, parse_json(options, "options"));
  std::vector<double> out;
  for (int64_t step = 0; step < n; ++step) out.push_back(schedule(0.3, step));
  return out;
}

void expect_equal(const std::vector<double>& ours, const std::vector<double>& expected) {
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], expected[i], 1e-14) << "step " << i;
}

std::string schedule_error(const char* name, const char* options) {
  return twinkle::invalid_of([&] { make_schedule(name, parse_json(options, "options")); });
}

// The numbers are what torch 2.11's (and, for warm-ups, transformers 5.23's) schedulers set from
// lr 0.3, one per update.
TEST(Schedule, EqualsTorchsConstantAndLinear) {
  expect_equal(rates("constant", "{}", 3), {0.3, 0.3, 0.3});
  expect_equal(rates("ConstantLR", "{}", 7), {0.1, 0.1, 0.1, 0.1, 0.1, 0.3, 0.3});
  expect_equal(rates("LinearLR", "{}", 8), {0.1, 0.14, 0.18, 0.22, 0.26, 0.3, 0.3, 0.3});
  expect_equal(rates("LinearLR", R"({"start_factor":0.5,"end_factor":0.1,"total_iters":4})", 6),
               {0.15, 0.12, 0.09, 0.06, 0.03, 0.03});
}

TEST(Schedule, EqualsTorchsStepAndExponential) {
  expect_equal(rates("StepLR", R"({"step_size":3})", 8),
               {0.3, 0.3, 0.3, 0.03, 0.03, 0.03, 0.003, 0.003});
  expect_equal(rates("ExponentialLR", R"({"gamma":0.8})", 6),
               {0.3, 0.24, 0.192, 0.1536, 0.12288, 0.098304});
}

TEST(Schedule, EqualsTorchsCosineAnnealingAlsoPastItsEnd) {
  expect_equal(
      rates("CosineAnnealingLR", R"({"T_max":5,"eta_min":0.02})", 14),
      {0.3, 0.27326237921249263, 0.2032623792124926, 0.11673762078750735, 0.046737620787507365,
       0.02, 0.04673762078750736, 0.1167376207875074, 0.2032623792124927, 0.2732623792124928, 0.3,
       0.27326237921249286, 0.20326237921249274, 0.11673762078750745});
}

TEST(Schedule, CosineWarmupIsTransformersAfterAWarmupThatStartsAboveZero) {
  expect_equal(
      rates("CosineWarmupScheduler", R"({"num_warmup_steps":3,"num_training_steps":10})", 13),
      {0.1, 0.2, 0.3, 0.3, 0.28514533018536287, 0.24352347027881002, 0.18337814009344713,
       0.11662185990655284, 0.05647652972118997, 0.014854669814637143, 0.0, 0.014854669814637128,
       0.05647652972118994});
  expect_equal(
      rates("CosineWarmupScheduler",
            R"({"num_warmup_steps":0,"num_training_steps":8,"num_cycles":1.5})", 10),
      {0.3, 0.20740251485476346, 0.04393398282201788, 0.011418070123306973, 0.14999999999999997,
       0.28858192987669296, 0.25606601717798216, 0.09259748514523652, 0.0, 0.09259748514523643});
}

TEST(Schedule, LinearWarmupIsTransformersAfterAWarmupThatStartsAboveZero) {
  expect_equal(
      rates("LinearWarmupScheduler", R"({"num_warmup_steps":3,"num_training_steps":10})", 12),
      {0.1, 0.2, 0.3, 0.3, 0.2571428571428571, 0.21428571428571427, 0.1714285714285714,
       0.12857142857142856, 0.0857142857142857, 0.04285714285714285, 0.0, 0.0});
}

TEST(Schedule, RefusesUnknownNamesAndOptionsWithTheKnownOnes) {
  EXPECT_EQ(schedule_error("CyclicLR", "{}"),
            "optim: unknown lr schedule 'CyclicLR', known are constant, ConstantLR, LinearLR, "
            "StepLR, ExponentialLR, CosineAnnealingLR, CosineWarmupScheduler, "
            "LinearWarmupScheduler");
  EXPECT_EQ(schedule_error("LinearLR", R"({"steps":3})"),
            "optim: LinearLR has no option 'steps', it has start_factor, end_factor, total_iters");
  EXPECT_EQ(schedule_error("constant", R"({"lr":3})"),
            "optim: constant has no option 'lr', it has none");
}

TEST(Schedule, RefusesMissingOptionsAndThoseOutOfRange) {
  EXPECT_EQ(schedule_error("CosineAnnealingLR", "{}"), "optim: CosineAnnealingLR needs T_max");
  EXPECT_EQ(schedule_error("ExponentialLR", "{}"), "optim: ExponentialLR needs gamma");
  EXPECT_EQ(schedule_error("LinearLR", R"({"start_factor":0})"),
            "optim: start_factor of LinearLR is 0, it must be above 0");
  EXPECT_EQ(schedule_error("LinearLR", R"({"end_factor":1.5})"),
            "optim: end_factor of LinearLR is 1.5, it must be at least 0 and at most 1");
  EXPECT_EQ(schedule_error("StepLR", R"({"step_size":0})"),
            "optim: step_size of StepLR is 0, it must be at least 1");
  EXPECT_EQ(
      schedule_error("CosineWarmupScheduler", R"({"num_warmup_steps":-1,"num_training_steps":3})"),
      "optim: num_warmup_steps of CosineWarmupScheduler is -1, it must be at least 0");
  EXPECT_EQ(schedule_error("StepLR", R"({"step_size":2,"gamma":-1})"),
            "optim: gamma of StepLR is -1, it must be at least 0 and finite");
}

}  // namespace
}  // namespace twinkle::optim
