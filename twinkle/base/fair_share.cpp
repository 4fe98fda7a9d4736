#include "twinkle/base/fair_share.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace twinkle {
namespace {

constexpr double kNothing = 1e-6;  // below what is ever spent: the rounding of many sums

double room(const Account& a) { return std::max(0.0, a.most - a.credit); }

}  // namespace

void balance(std::span<Account* const> accounts) {
  double credit = 0, weight = 0;
  for (const Account* a : accounts) {
    if (a->most <= 0 && a->credit >= 0) continue;
    credit += a->credit;
    weight += a->weight;
  }
  if (weight == 0) return;
  for (Account* a : accounts) {
    if (a->most > 0 || a->credit < 0) a->credit -= credit / weight * a->weight;
  }
}

int Window::spare(double due, double got, double portion) const {
  if (rows_.size() + 1 < kRounds) return kMany;
  double all_due = due, all_got = got;
  for (const Row& row : rows_) all_due += row.due, all_got += row.got;
  for (int rounds = 0; rounds < kMany; ++rounds) {
    if (all_got < kShare * all_due && all_due >= kPortions * portion) return rounds;
    const Row& oldest = rows_[static_cast<size_t>(rounds)];
    all_due += due - oldest.due;
    all_got -= oldest.got;
  }
  return kMany;
}

void Window::add(double due, double got) {
  rows_.push_back({due, got});
  if (rows_.size() == kRounds) rows_.pop_front();
}

size_t next_of(std::span<const Claim> claims) {
  const auto order = [](const Claim& c) {
    const Account& a = *c.account;
    return std::tuple(c.spare, a.credit < c.from - kNothing, (c.cost - a.credit) / a.weight,
                      a.last_turn);
  };
  const auto first = std::ranges::min_element(claims, {}, order);
  return static_cast<size_t>(first - claims.begin());
}

void charge(std::span<Account* const> accounts, Account& payer, double cost) {
  payer.credit -= cost;
  while (cost > kNothing) {
    double weight = 0, flow = std::numeric_limits<double>::infinity();
    for (const Account* a : accounts) {
      if (room(*a) <= kNothing) continue;
      weight += a->weight;
      flow = std::min(flow, room(*a) / a->weight);  // until the first can earn no more
    }
    if (weight == 0) return;
    flow = std::min(flow, cost / weight);
    for (Account* a : accounts) {
      if (room(*a) > kNothing) a->credit += flow * a->weight;
    }
    cost -= flow * weight;
  }
}

}  // namespace twinkle
