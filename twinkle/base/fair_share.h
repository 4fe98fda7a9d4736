// Who comes next where several share something by weight: deficit round robin (Shreedhar and
// Varghese 1995) in the limit of a small quantum. All that claim something earn by weight, and the
// first that can pay for what it claims is served and pays. So nobody's credit is below 0 or above
// what it claims, and between two that always claim, what they got divided by their weights differs
// by no more than their two longest claims, each divided by its weight. Plain data: no thread, no
// clock; knows neither what is shared nor by whom.
#pragma once
#include <cstdint>
#include <span>

namespace twinkle {

struct Account {
  double weight = 1.0;     // > 0
  double credit = 0;       // earned and not spent
  uint64_t last_turn = 0;  // of equals the one with the lowest is next
};

// What an owner would spend next.
struct Claim {
  Account* account;
  double cost;
  double from = cost;  // credit that it takes to begin; below `cost`: the rest is paid later
};

// The claim that can be paid for first. At least one claim.
size_t next_of(std::span<const Claim> claims);

// All `accounts` earn until `claim`, one of theirs, can begin, and it is paid.
void charge(std::span<Account* const> accounts, const Claim& claim);

}  // namespace twinkle
