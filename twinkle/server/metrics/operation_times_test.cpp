#include "twinkle/server/metrics/operation_times.h"

#include <gtest/gtest.h>

#include <sstream>

#include "twinkle/base/error.h"

namespace twinkle::server {
namespace {

TEST(Histogram, CountsWhatIsAtMostEachBound) {
  Histogram histogram;
  const std::vector<double> times{0.0, 0.001, 0.0011, 0.25, 7.0, 1e6};
  for (const double time : times) histogram.add(time);
  std::ostringstream out;
  out.precision(15);
  histogram.write(out, "x_seconds", "route=\"/a\"");
  std::ostringstream want;
  want.precision(15);
  for (const double bound : Histogram::kBounds)
    want << "x_seconds_bucket{route=\"/a\",le=\"" << bound << "\"} "
         << std::ranges::count_if(times, [&](double time) { return time <= bound; }) << '\n';
  want << "x_seconds_bucket{route=\"/a\",le=\"+Inf\"} 6\n"
       << "x_seconds_sum{route=\"/a\"} 1000007.2521\n"
       << "x_seconds_count{route=\"/a\"} 6\n";
  EXPECT_EQ(out.str(), want.str());
}

class OperationTimesTest : public testing::Test {
 protected:
  // One that ends at once.
  void run(const engine::Operation& operation, engine::Outcome outcome) {
    bool is_told = false;
    times_.watch(operation, [&](const engine::Outcome&) { is_told = true; })(std::move(outcome));
    EXPECT_TRUE(is_told);
  }
  void train(const std::string& run, double loss, double num_tokens) {
    this->run(engine::ForwardBackward{.tenant = run},
              {.result = engine::ForwardResult{.loss = loss, .num_tokens = num_tokens}});
  }
  // The line's value, or "none".
  std::string value(const std::string& name) const {
    std::ostringstream out;
    times_.write(out);
    std::istringstream in(out.str());
    for (std::string line; std::getline(in, line);)
      if (line.starts_with(name + " ")) return line.substr(name.size() + 1);
    return "none";
  }
  std::string loss(const std::string& run) const {
    return value("twinkle_run_loss{run=\"" + run + "\"}");
  }

  OperationTimes times_;
};

TEST_F(OperationTimesTest, WaitingAndComputingAreCountedByKind) {
  run(engine::Step{.tenant = "a"}, {.result = engine::StepResult{}, .seconds = 7});
  run(engine::Step{.tenant = "b"},
      {.error = std::make_exception_ptr(Error(Code::kBusy, "closed")), .seconds = 0});
  run(engine::Sample{.tenant = "a"}, {.seconds = 0.5});
  const std::string computing = "twinkle_operation_computing_seconds";
  EXPECT_EQ(value(computing + "_count{operation=\"step\"}"), "2");
  EXPECT_EQ(value(computing + "_sum{operation=\"step\"}"), "7");
  EXPECT_EQ(value(computing + "_bucket{operation=\"step\",le=\"5\"}"), "1");
  EXPECT_EQ(value(computing + "_bucket{operation=\"step\",le=\"10\"}"), "2");
  EXPECT_EQ(value(computing + "_sum{operation=\"sample\"}"), "0.5");
  EXPECT_EQ(value("twinkle_operation_waiting_seconds_count{operation=\"step\"}"), "2");
  EXPECT_EQ(value(computing + "_count{operation=\"save\"}"), "none");
}

TEST_F(OperationTimesTest, TheLossIsThatATokenOfTheLastForwardBackwardThatWasDone) {
  train("a", 12, 4);
  train("b", 5, 2);
  train("a", 3, 2);
  EXPECT_EQ(loss("a"), "1.5");
  EXPECT_EQ(loss("b"), "2.5");
  run(engine::ForwardBackward{.tenant = "a"},
      {.error = std::make_exception_ptr(Error(Code::kInvalid, "no"))});
  train("a", 3, 0);  // no token
  EXPECT_EQ(loss("a"), "1.5");
  run(engine::Delete{.tenant = "a"}, {});
  EXPECT_EQ(loss("a"), "none");
}

TEST_F(OperationTimesTest, TheRunsThatWereTrainedLastHaveALossAndNoMore) {
  const auto name = [](size_t i) { return "run" + std::to_string(i); };
  for (size_t i = 0; i < OperationTimes::kMaxRuns; ++i) train(name(i), 1, 1);
  train(name(0), 2, 1);  // again
  train("another", 3, 1);
  EXPECT_EQ(loss(name(0)), "2");
  EXPECT_EQ(loss(name(1)), "none") << "longest ago";
  EXPECT_EQ(loss(name(2)), "1");
  EXPECT_EQ(loss("another"), "3");
}

}  // namespace
}  // namespace twinkle::server
