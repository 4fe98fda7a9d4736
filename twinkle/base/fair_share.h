// Deficit round robin (Shreedhar and Varghese 1995) in the limit of a small quantum: several
// accounts share something by weight. All that claim something earn credit by weight, and the first
// that can pay for its claim is served and pays. So a credit is never below 0 nor above the claim,
// and the shares of two accounts that always claim, divided by their weights, differ by at most the
// sum of their longest claims, each divided by its weight. Plain data: no thread, no clock.
#pragma once
#include <cstdint>
#include <span>

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

// The claim that can be paid first. At least one claim.
size_t next_of(std::span<const Claim> claims);

// All `accounts` earn until `claim`, one of theirs, can begin, and it is paid.
void charge(std::span<Account* const> accounts, const Claim& claim);

}  // namespace twinkle
