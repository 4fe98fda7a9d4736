#include "twinkle/base/fault/fault.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace twinkle {

namespace {
std::vector<std::string> reached;
}  // namespace

void reach_fault_point(std::string_view name) { reached.emplace_back(name); }

namespace {

TEST(Fault, IsToldToAProgramThatDefinesWhatItCalls) {
  fault("before this");
  fault("after this");
  EXPECT_EQ(reached, (std::vector<std::string>{"before this", "after this"}));
}

}  // namespace
}  // namespace twinkle
