#include "twinkle/base/fair_share.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "twinkle/base/random.h"

namespace twinkle {
namespace {

struct Owners {
  explicit Owners(std::vector<double> weights) : accounts(weights.size()) {
    for (size_t i = 0; i < weights.size(); ++i) {
      accounts[i] = {.weight = weights[i], .last_turn = i};
      all.push_back(&accounts[i]);
    }
  }

  // Serves one claim of each owner's next cost; returns whose it was.
  size_t serve(const std::vector<double>& costs) {
    std::vector<Claim> claims;
    for (size_t i = 0; i < costs.size(); ++i) claims.push_back({all[i], costs[i]});
    const size_t first = next_of(claims);
    charge(claims, first);
    accounts[first].last_turn = ++turn;
    return first;
  }

  std::vector<Account> accounts;
  std::vector<Account*> all;
  uint64_t turn = 100;
};

TEST(FairShare, TwoAreNeverFurtherApartThanOneOfTheLongestEach) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&] { return uniform_at(seed, ++draws); };
    std::vector<double> weights(2 + seed % 9), got(weights.size());
    for (double& w : weights) w = 0.1 + 10 * draw();
    Owners owners(weights);
    std::vector<double> costs(weights.size());
    for (double& c : costs) c = 1 + 49 * draw();
    for (int i = 0; i < 500; ++i) {
      const size_t first = owners.serve(costs);
      got[first] += costs[first];
      costs[first] = 1 + 49 * draw();
      for (size_t o = 0; o < got.size(); ++o) {
        ASSERT_GE(owners.accounts[o].credit, -1e-6);
        ASSERT_LE(owners.accounts[o].credit, 50 + 1e-6);
        for (size_t p = 0; p < o; ++p) {
          ASSERT_LE(std::abs(got[o] / weights[o] - got[p] / weights[p]),
                    50 / weights[o] + 50 / weights[p]);
        }
      }
    }
  }
}

TEST(FairShare, AHeavyOwnerGetsItsPartOfEveryRound) {
  std::vector<double> weights(11, 1.0);
  weights[0] = 10;
  Owners owners(weights);
  for (int window = 0; window < 20; ++window) {
    int heavy = 0;
    for (int i = 0; i < 20; ++i) heavy += owners.serve(std::vector<double>(11, 8.0)) == 0;
    EXPECT_NEAR(heavy, 10, 1);
  }
}

TEST(FairShare, WhoIsNotThereEarnsNothing) {
  Owners owners({1, 1, 2});
  owners.accounts[1].credit = 7;
  charge(std::vector<Claim>{{owners.all[0], 90}, {owners.all[2], 40}}, 1);
  EXPECT_NEAR(owners.accounts[0].credit, 20, 1e-6);
  EXPECT_EQ(owners.accounts[1].credit, 7);
  EXPECT_NEAR(owners.accounts[2].credit, 0, 1e-6);
}

TEST(FairShare, AClaimThatMayBeginBeforeItIsPaidLeavesADebt) {
  Owners owners({1, 1});
  const std::vector<Claim> claims{{owners.all[0], 90, 10}, {owners.all[1], 20}};
  EXPECT_EQ(next_of(claims), 0u);
  charge(claims, 0);
  EXPECT_NEAR(owners.accounts[0].credit, -80, 1e-6);
  EXPECT_NEAR(owners.accounts[1].credit, 10, 1e-6);
}

TEST(FairShare, WhoHasEnoughCreditIsServedAndNobodyEarns) {
  Owners owners({1, 1});
  owners.accounts[0].credit = 30;
  charge(std::vector<Claim>{{owners.all[0], 20}, {owners.all[1], 90}}, 0);
  EXPECT_EQ(owners.accounts[0].credit, 10);
  EXPECT_EQ(owners.accounts[1].credit, 0);
}

}  // namespace
}  // namespace twinkle
