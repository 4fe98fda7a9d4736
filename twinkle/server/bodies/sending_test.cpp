#include "twinkle/server/bodies/sending.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace twinkle::server {
namespace {

constexpr int64_t kBytes = 100'000;

class SendingTest : public testing::Test {
 protected:
  std::unique_ptr<Sending::One> send(const std::string& text, int name) {
    return std::make_unique<Sending::One>(sending_, text,
                                          [this, name] { closed_.push_back(name); });
  }

  const std::string a_ = std::string(kBytes, 'a'), b_ = a_, c_ = a_, d_ = a_;
  const std::shared_ptr<Sending> sending_ = std::make_shared<Sending>(3 * kBytes);
  std::vector<int> closed_;
};

TEST_F(SendingTest, WhoTakesLongestIsClosedWhenThereWouldBeMoreThanMayBe) {
  const auto one = send(a_, 1);
  auto two = send(b_, 2);
  const auto three = send(c_, 3);
  EXPECT_EQ(closed_, std::vector<int>{});
  two.reset();
  const auto four = send(d_, 4);
  EXPECT_EQ(closed_, std::vector<int>{});
  const auto five = send(b_, 5);
  EXPECT_EQ(closed_, std::vector<int>{1});
  EXPECT_EQ(sending_->num_bytes(), 3 * kBytes);
}

TEST_F(SendingTest, BytesThatManyAreSentAreThereOnce) {
  std::vector<std::unique_ptr<Sending::One>> many;
  for (int i = 0; i < 1000; ++i) many.push_back(send(a_, i));
  EXPECT_EQ(sending_->num_bytes(), kBytes);
  EXPECT_TRUE(closed_.empty());
  many.clear();
  EXPECT_EQ(sending_->num_bytes(), 0);
}

TEST_F(SendingTest, OneLongerThanAllMayBeIsSentAndShortOnesDoNotCount) {
  const std::string longest(4 * kBytes, 'x'), brief(1000, 'x');
  const auto one = send(brief, 1), two = send(a_, 2), three = send(longest, 3);
  EXPECT_EQ(closed_, std::vector<int>{2});
  EXPECT_EQ(sending_->num_bytes(), 4 * kBytes);
}

TEST_F(SendingTest, AStreamCountsWhatItHasNowAndIsAtItSinceItLastHadLittle) {
  Sending::One stream(sending_, [this] { closed_.push_back(0); });
  stream.holds(2 * kBytes);
  EXPECT_EQ(sending_->num_bytes(), 2 * kBytes);
  stream.holds(1000);
  EXPECT_EQ(sending_->num_bytes(), 0);
  const auto one = send(a_, 1), two = send(b_, 2);
  stream.holds(kBytes);
  const auto three = send(c_, 3);
  EXPECT_EQ(closed_, std::vector<int>{1});
  stream.holds(2 * kBytes);
  EXPECT_EQ(closed_, (std::vector<int>{1, 2}));
  stream.holds(9 * kBytes);
  EXPECT_EQ(closed_, (std::vector<int>{1, 2, 0})) << "it is too long by itself, and the older";
  stream.holds(10 * kBytes);
  EXPECT_EQ(sending_->num_bytes(), kBytes) << "a closed one counts no more";
}

}  // namespace
}  // namespace twinkle::server
