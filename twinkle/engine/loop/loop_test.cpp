#include "twinkle/engine/loop/loop.h"

#include <gtest/gtest.h>

#include <fstream>

#include "twinkle/base/error_for_test.h"

namespace twinkle::engine {
namespace {

Json json(const char* text) { return parse_json(text, "test"); }

Json step_options(const Loop& loop, const char* given = "{}") {
  return parse_json(loop.step(json(given)).options, "options");
}

TEST(Loop, StepsAtEveryKthMicroBatch) {
  Loop loop;
  loop.set_accumulation(3);
  std::vector<bool> boundaries;
  for (int i = 0; i < 7; ++i) {
    loop.add_micro_batch();
    boundaries.push_back(loop.at_boundary());
    if (loop.at_boundary()) loop.add_step(nullptr, 1, 1);
  }
  EXPECT_EQ(boundaries, (std::vector<bool>{false, false, true, false, false, true, false}));
  EXPECT_EQ(loop.progress().cur_step, 7);
  EXPECT_EQ(loop.progress().accumulated, 1);
  EXPECT_EQ(loop.progress().iters, 2);
}

TEST(Loop, TheScheduleMultipliesTheOptimizersRateUnlessAStepIsGivenOne) {
  Loop loop;
  loop.set_optimizer("SGD", json(R"({"lr": 0.5, "momentum": 0.9})"));
  loop.set_schedule("ExponentialLR", json(R"({"gamma": 0.5})"));
  loop.add_micro_batch();
  loop.add_step(nullptr, 1, 1);
  EXPECT_EQ(step_options(loop), json(R"({"lr": 0.25, "momentum": 0.9})"));
  const char* given = R"({"lr": 2, "momentum": 0.1})";
  EXPECT_EQ(step_options(loop, given), json(R"({"lr": 2.0, "momentum": 0.1})"));
  loop.add_step(json(given), 1, 1);
  EXPECT_EQ(step_options(loop), json(R"({"lr": 0.125, "momentum": 0.1})"));
}

TEST(Loop, WithoutAScheduleAGivenRateStays) {
  Loop loop;
  EXPECT_EQ(loop.lr(), Loop::kDefaultLr);
  loop.add_step(json(R"({"lr": 0.5})"), 1, 0);
  EXPECT_EQ(loop.lr(), 0.5);
}

TEST(Loop, ACallersRateIsAskedByBaseAndStep) {
  Loop loop;
  loop.set_optimizer("SGD", json(R"({"lr": 8})"));
  loop.set_schedule("Own", json("{}"),
                    [](double base, int64_t step) { return base - static_cast<double>(step); });
  loop.add_step(nullptr, 1, 3);
  EXPECT_EQ(loop.lr(), 5);
}

TEST(Loop, TheNormOfAStepIsThatBeforeTheClip) {
  Loop loop;
  loop.add_micro_batch();
  loop.add_clip(7);
  loop.add_step(nullptr, 1, 0);
  EXPECT_EQ(loop.progress().grad_norm, 7);
  loop.add_micro_batch();
  loop.add_step(nullptr, 2, 0);
  EXPECT_EQ(loop.progress().grad_norm, 2);
}

TEST(Loop, RefusesWhatTheTablesDoNotHaveAndStaysAsItWas) {
  Loop loop;
  const Json before = loop.state(0);
  EXPECT_NE(invalid_of([&] { loop.set_optimizer("Up", {}); }), "no error");
  EXPECT_NE(invalid_of([&] { loop.set_optimizer("SGD", json(R"({"speed": 1})")); }), "no error");
  EXPECT_EQ(invalid_of([&] { loop.set_optimizer("SGD", json(R"({"lr": null})")); }),
            "model: optimizer: lr is None, it must be a number, or left out");
  EXPECT_NE(invalid_of([&] { loop.set_schedule("Up", {}); }), "no error");
  EXPECT_EQ(invalid_of([&] { loop.set_accumulation(0); }),
            "model: gradient_accumulation_steps is 0, it must be an integer of at least 1");
  EXPECT_NE(invalid_of([&] { loop.step(json(R"({"speed": 1})")); }), "no error");
  EXPECT_EQ(loop.state(0), before);
}

TEST(Loop, AStateBringsCountersAndOptionsBack) {
  Loop first;
  first.set_optimizer("SGD", json(R"({"lr": 0.1})"));
  first.set_schedule("StepLR", json(R"({"step_size": 2})"));
  for (int i = 0; i < 3; ++i) first.add_micro_batch();
  first.add_step(json(R"({"momentum": 0.5})"), 1, 1);
  first.add_micro_batch();
  Loop second;
  second.set_optimizer("SGD", json(R"({"lr": 3})"));
  second.set_schedule("StepLR", json(R"({"step_size": 2})"));
  const Json state = parse_json(boost::json::serialize(first.state(32)), "state");
  second.check(state);
  second.load(state);
  EXPECT_EQ(second.state(32), first.state(32));
  EXPECT_EQ(second.lr(), first.lr());
}

TEST(Loop, RefusesAStateOfAnotherOptimizerOrSchedule) {
  Loop saved, loop;
  saved.set_schedule("StepLR", json(R"({"step_size": 2})"));
  loop.set_schedule("StepLR", json(R"({"step_size": 3})"));
  EXPECT_EQ(invalid_of([&] { loop.check(saved.state(0)); }),
            "model: scheduler_options is {\"step_size\":3}, but the checkpoint was saved with "
            "{\"step_size\":2}: call set_lr_scheduler as for the saved run before, or load weights "
            "alone (resume_only_model=True, or load_optimizer=False)");
  Loop constant;
  EXPECT_NE(invalid_of([&] { constant.check(saved.state(0)); }).find("scheduler is None"),
            std::string::npos);
  loop.check(JsonObject());
  loop.load(JsonObject());
  EXPECT_EQ(loop.progress().cur_step, 0);
}

TEST(LoopState, IsReadFromASavedDirectory) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "loop_state";
  std::filesystem::create_directories(folder);
  const auto write = [&](const std::string& extra) {
    std::ofstream(folder / "trainer_state.json")
        << boost::json::serialize(JsonObject{{"extra", extra}});
  };
  std::filesystem::remove(folder / "trainer_state.json");
  EXPECT_EQ(loop_state_in(folder, LoopFormat::kVersioned), Json(JsonObject()));
  const Loop loop;
  write(boost::json::serialize(loop.state(5)));
  EXPECT_EQ(loop_state_in(folder, LoopFormat::kVersioned).at("consumed_train_samples"), Json(5));
  write(R"({"step": 3})");  // another program's
  EXPECT_EQ(loop_state_in(folder, LoopFormat::kVersioned), Json(JsonObject()));
  write(R"({"checkpoint_version": 1})");
  EXPECT_NE(invalid_of([&] {
              loop_state_in(folder, LoopFormat::kVersioned);
            }).find("of format 1, this version reads format 2"),
            std::string::npos);
  EXPECT_NE(loop_state_in(folder, LoopFormat::kAny), Json(JsonObject()));
  write(R"({"cur_step": -1, "checkpoint_version": 2})");
  EXPECT_NE(invalid_of([&] {
              loop_state_in(folder, LoopFormat::kAny);
            }).find("cur_step is -1, it must be an integer of at least 0"),
            std::string::npos);
}

}  // namespace
}  // namespace twinkle::engine
