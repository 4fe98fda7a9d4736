// Who comes next where several share something by weight: deficit round robin (Shreedhar and
// Varghese 1995) in the limit of a small quantum, in which nobody begins who is ahead of its share
// (Stoica and Abdel-Wahab 1995), so that what is due comes evenly and not in bursts. Whatever is
// spent is earned by all that are in the round, by weight. Plain data: no thread, no clock; knows
// neither what is shared nor by whom.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

namespace twinkle {

struct Account {
  double weight = 1.0;  // > 0
  double credit = 0;    // what it is owed; below 0: it has had more than its share
  double most = 0;      // credit that it earns up to. 0: it is not in the round, and earns nothing
                        // but what it owes
  uint64_t last_turn = 0;  // of equals the one with the lowest is next
};

// What an owner was due by weight, and got, in its last rounds: whole portions serve who is owed
// the same at different times, and who comes late would miss what is promised of any kRounds in a
// row.
class Window {
 public:
  static constexpr size_t kRounds = 20;
  static constexpr double kShare = 0.8;
  static constexpr int kMany = 2;
  // Whose share of kRounds is fewer portions is promised nothing: the promise could only be kept by
  // giving more than the weight in the long run.
  static constexpr double kPortions = 6;

  // Rounds that may pass, this one the first, before a promise of kShare is broken, if it gets no
  // more than `got` in this one; kMany and no more are told apart. `due` in each of them;
  // `portion`: its largest.
  int spare(double due, double got, double portion) const;
  void add(double due, double got);
  void clear() { rows_.clear(); }

 private:
  struct Row {
    double due, got;
  };
  std::deque<Row> rows_;  // at most kRounds - 1
};

// What an owner would spend next.
struct Claim {
  Account* account;
  double cost;
  double from = 0;  // credit from which it may begin; below, it comes after those that may
  int spare = Window::kMany;  // the fewest come first
};

// Before a round: those in it together are owed nothing, however some left and came back.
void balance(std::span<Account* const> accounts);

// The claim to serve: of those that can wait least and may begin, or else of all of them, the one
// that its owner's weight pays for first. At least one claim.
size_t next_of(std::span<const Claim> claims);

// `payer`, one of `accounts`, has spent `cost`.
void charge(std::span<Account* const> accounts, Account& payer, double cost);

}  // namespace twinkle
