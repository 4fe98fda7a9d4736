#include "twinkle/engine/schedule/admission.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "twinkle/base/random.h"

namespace twinkle::engine {
namespace {

std::vector<Admitted> all(Admission& admission) {
  std::vector<Admitted> out;
  while (const auto request = admission.next()) out.push_back(*request);
  return out;
}

TEST(Admission, TakesTheRequestsOfASampleInOrderUntilTheSequencesAreEnough) {
  Admission admission(4);
  admission.push("a", {}, 1, {1, 1, 1, 1, 1});
  const auto taken = all(admission);
  ASSERT_EQ(taken.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(taken[i].index, i);
  EXPECT_EQ(admission.num_running(), 4);
  admission.release(taken[2]);
  EXPECT_EQ(all(admission).at(0).index, 4u);
  EXPECT_TRUE(admission.remove(1));
  EXPECT_EQ(admission.num_running(), 0);
  EXPECT_EQ(admission.size(), 0u);
  EXPECT_FALSE(admission.remove(1));
}

TEST(Admission, SequencesAreHeldByWeight) {
  Admission admission(40);
  admission.push("one", {1, 0}, 1, std::vector<int64_t>(1000, 1));
  admission.push("three", {3, 0}, 2, std::vector<int64_t>(1000, 1));
  std::vector<Admitted> running = all(admission);
  for (uint64_t i = 0; i < 1000; ++i) {
    const auto one = static_cast<int64_t>(
        std::count_if(running.begin(), running.end(), [](const auto& r) { return r.id == 1; }));
    ASSERT_NEAR(static_cast<double>(one), 10, 1) << i;
    const size_t ended = key_of(3, i) % running.size();
    admission.release(running[ended]);
    running.erase(running.begin() + static_cast<ptrdiff_t>(ended));
    const auto next = all(admission);
    if (next.empty()) break;
    running.insert(running.end(), next.begin(), next.end());
  }
}

TEST(Admission, ATenantWithAHundredTimesTheRequestsHoldsNobodyBack) {
  Admission admission(8);
  admission.push("hog", {}, 1, std::vector<int64_t>(1000, 1));
  std::vector<Admitted> running = all(admission);
  admission.push("small", {}, 2, {1});
  admission.release(running[3]);
  EXPECT_EQ(all(admission).at(0).id, 2);
}

TEST(Admission, AHigherPriorityComesFirst) {
  Admission admission(2);
  admission.push("low", {1000, 0}, 1, {1, 1});
  admission.push("high", {0.001, 5}, 2, {1, 1});
  for (const Admitted& request : all(admission)) EXPECT_EQ(request.id, 2);
}

TEST(Admission, ARequestOfManySequencesIsTakenWhole) {
  Admission admission(2);
  admission.push("a", {}, 1, {5, 1});
  EXPECT_EQ(all(admission).size(), 1u);
  EXPECT_EQ(admission.num_running(), 5);
  EXPECT_EQ(admission.newest(), 1);
  admission.release({1, 0});
  EXPECT_EQ(all(admission).at(0).index, 1u);
}

TEST(Admission, TheNewestIsTheSampleThatWasTakenFromLast) {
  Admission admission(3);
  admission.push("a", {}, 1, {1, 1});
  admission.push("b", {}, 2, {1});
  const auto taken = all(admission);  // a, b, a
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_EQ(admission.newest(), 1);
  admission.remove(1);
  EXPECT_EQ(admission.newest(), 2);
}

}  // namespace
}  // namespace twinkle::engine
