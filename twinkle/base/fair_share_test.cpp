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
      accounts[i] = {.weight = weights[i], .most = 100, .last_turn = i};
      all.push_back(&accounts[i]);
    }
  }

  // Serves one claim of each owner's next cost; returns whose it was.
  size_t serve(const std::vector<double>& costs) {
    std::vector<Claim> claims;
    for (size_t i = 0; i < costs.size(); ++i) claims.push_back({all[i], costs[i]});
    const size_t first = next_of(claims);
    charge(all, accounts[first], costs[first]);
    accounts[first].last_turn = ++turn;
    return first;
  }

  std::vector<Account> accounts;
  std::vector<Account*> all;
  uint64_t turn = 100;
};

TEST(FairShare, NobodyIsEverAheadOrBehindByMoreThanOneOfTheLongest) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&] { return uniform_at(seed, ++draws); };
    std::vector<double> weights(2 + seed % 9), got(weights.size());
    double weight = 0, total = 0;
    for (double& w : weights) weight += w = 0.1 + 10 * draw();
    Owners owners(weights);
    std::vector<double> costs(weights.size());
    for (double& c : costs) c = 1 + 49 * draw();
    for (int i = 0; i < 500; ++i) {
      const size_t first = owners.serve(costs);
      got[first] += costs[first];
      total += costs[first];
      costs[first] = 1 + 49 * draw();
      for (size_t o = 0; o < got.size(); ++o) {
        ASSERT_NEAR(got[o], total * weights[o] / weight, 50) << "seed " << seed << ", owner " << o;
        ASSERT_NEAR(owners.accounts[o].credit, total * weights[o] / weight - got[o], 1e-6);
      }
    }
  }
}

TEST(FairShare, AHeavyOwnerIsServedEvenlyAmongManyLightOnes) {
  std::vector<double> weights(11, 1.0);
  weights[0] = 10;
  Owners owners(weights);
  for (int window = 0; window < 20; ++window) {
    int heavy = 0;
    for (int i = 0; i < 20; ++i) heavy += owners.serve(std::vector<double>(11, 8.0)) == 0;
    EXPECT_NEAR(heavy, 10, 1) << "and not ten at a time";
  }
}

TEST(FairShare, WhatOneCanEarnNoMoreTheOthersEarn) {
  Owners owners({1, 1, 2});
  owners.accounts[0].most = 5;
  charge(owners.all, owners.accounts[2], 40);
  EXPECT_NEAR(owners.accounts[0].credit, 5, 1e-6);
  EXPECT_NEAR(owners.accounts[1].credit, 35.0 / 3, 1e-6);
  EXPECT_NEAR(owners.accounts[2].credit, 70.0 / 3 - 40, 1e-6);
}

TEST(FairShare, WhoIsAwayPaysOffItsDebtAndEarnsNothing) {
  Owners owners({1, 1});
  owners.accounts[1] = {.weight = 1, .credit = -10, .most = 0};
  charge(owners.all, owners.accounts[0], 30);
  EXPECT_NEAR(owners.accounts[1].credit, 0, 1e-6);
  owners.accounts[1].credit = 7;
  charge(owners.all, owners.accounts[0], 30);
  EXPECT_EQ(owners.accounts[1].credit, 7);
}

TEST(FairShare, ABalanceLeavesTheOrderAndOwesNothingInSum) {
  Owners owners({1, 3, 1});
  owners.accounts[0].credit = 12;
  owners.accounts[1].credit = 8;
  owners.accounts[2] = {.weight = 1, .credit = 50, .most = 0};  // away
  balance(owners.all);
  EXPECT_NEAR(owners.accounts[0].credit, 7, 1e-6);
  EXPECT_NEAR(owners.accounts[1].credit, -7, 1e-6);
  EXPECT_EQ(owners.accounts[2].credit, 50);
}

TEST(FairShare, WhoCanWaitLeastComesFirst) {
  Owners owners({1, 1});
  owners.accounts[1].credit = -50;
  const std::vector<Claim> claims{{owners.all[0], 10}, {owners.all[1], 90, 0, 1}};
  EXPECT_EQ(next_of(claims), 1);
}

// Against the sum over a window of all rows.
TEST(FairShare, AWindowTellsHowLongItsPromiseCanWait) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Window window;
    std::vector<double> due(40), got(40);
    for (size_t i = 0; i < 40; ++i) {
      due[i] = 1 + 9 * uniform_at(seed, 2 * i);
      got[i] = uniform_at(seed, 2 * i + 1) < 0.3 ? 20 : 0;
      const double now = got[i] / 2;
      // What the 20 rounds up to `i + later` hold when nothing but `now` comes any more.
      const auto holds = [&](size_t later) {
        double all = due[i] * static_cast<double>(later + 1), had = now;
        for (size_t b = i + later - 19; b < i; ++b) all += due[b], had += got[b];
        return had >= 0.8 * all;
      };
      const int want = i < 19 ? 2 : !holds(0) ? 0 : !holds(1) ? 1 : 2;
      EXPECT_EQ(window.spare(due[i], now, 1), want) << "seed " << seed << ", round " << i;
      window.add(due[i], got[i]);
    }
    EXPECT_EQ(window.spare(1000, 0, 1), 0);
    EXPECT_EQ(window.spare(1000, 0, 1000), 2) << "a share of few portions is promised nothing";
    window.clear();
    EXPECT_EQ(window.spare(1, 0, 0), 2) << "nothing is known of it any more";
  }
}

TEST(FairShare, AClaimThatMayNotBeginYetComesAfterThoseThatMay) {
  Owners owners({1, 1});
  const std::vector<Claim> claims{{owners.all[0], 10, 5}, {owners.all[1], 90}};
  EXPECT_EQ(next_of(claims), 1u);
  owners.accounts[0].credit = 5;
  EXPECT_EQ(next_of(claims), 0u);
}

}  // namespace
}  // namespace twinkle
