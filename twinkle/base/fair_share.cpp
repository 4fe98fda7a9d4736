#include "twinkle/base/fair_share.h"

#include <algorithm>
#include <tuple>

namespace twinkle {
namespace {

// The time until the claim can begin, as what an account of weight 1 earns meanwhile.
double wait_of(const Claim& claim) {
  return (claim.from - claim.account->credit) / claim.account->weight;
}

}  // namespace

size_t next_of(std::span<const Claim> claims) {
  const auto order = [](const Claim& c) { return std::tuple(wait_of(c), c.account->last_turn); };
  const auto first = std::ranges::min_element(claims, {}, order);
  return static_cast<size_t>(first - claims.begin());
}

void charge(std::span<Account* const> accounts, const Claim& claim) {
  const double wait = std::max(0.0, wait_of(claim));
  for (Account* a : accounts) a->credit += wait * a->weight;
  claim.account->credit -= claim.cost;
}

}  // namespace twinkle
