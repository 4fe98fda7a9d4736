// Deficit round robin (Shreedhar and Varghese 1995) in the limit of a small quantum: several
// accounts share something by weight. All that claim something earn credit by weight, and the first
// that can pay for its claim is served and pays. So a credit is never below 0 nor above the claim,
// and the shares of two accounts that always claim, divided by their weights, differ by at most the
// sum of their longest claims, each divided by its weight. Plain data: no thread, no clock.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <tuple>

namespace twinkle {

struct Account {
  double weight = 1.0;     // > 0
  double credit = 0;       // earned and not spent
  uint64_t last_turn = 0;  // breaks ties: the lowest is next
};

// The next expense of an account.
struct Claim {
  Account* account;
  double cost;
  double from = cost;  // credit needed to begin; below `cost`: the rest is paid later
};

// The time until the claim can begin, as what an account of weight 1 earns meanwhile.
inline double wait_of(const Claim& claim) {
  return (claim.from - claim.account->credit) / claim.account->weight;
}

// The claim that can be paid first. At least one claim.
inline size_t next_of(std::span<const Claim> claims) {
  const auto order = [](const Claim& c) { return std::tuple(wait_of(c), c.account->last_turn); };
  return static_cast<size_t>(std::ranges::min_element(claims, {}, order) - claims.begin());
}

// The accounts of all claims earn until claims[first] can begin, and it is paid.
inline void charge(std::span<const Claim> claims, size_t first) {
  const double wait = std::max(0.0, wait_of(claims[first]));
  for (const Claim& claim : claims) claim.account->credit += wait * claim.account->weight;
  claims[first].account->credit -= claims[first].cost;
}

}  // namespace twinkle
