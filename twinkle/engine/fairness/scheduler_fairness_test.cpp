// The bound of deficit round robin: the constant that docs/decisions/0011-windows.md states.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "twinkle/base/random.h"
#include "twinkle/engine/schedule/scheduler.h"

namespace twinkle::engine {
namespace {

constexpr int64_t kBudget = 4096;

// A tenant that always has more queued than a batch holds.
struct Client {
  double weight = 1;
  int64_t longest = 256;  // sequence; lengths are drawn from 1 to it, or all are it
  bool all_longest = false;
  int64_t at_least = kBudget;  // tokens of an operation, up to a sequence more
};

class Service {
 public:
  Service(std::vector<Client> clients, uint64_t seed) : clients_(std::move(clients)), seed_(seed) {
    for (size_t c = 0; c < clients_.size(); ++c)
      scheduler_.set_share(name(c), {clients_[c].weight, 0});
    got.resize(clients_.size());
    queued_.resize(clients_.size());
  }

  void batch() {
    for (size_t c = 0; c < clients_.size(); ++c) send(c);
    for (const Slice& slice : scheduler_.next_batch()) {
      Op& op = ops_.at(slice.id);
      for (size_t s = slice.first; s < slice.last; ++s) {
        got[op.client] += static_cast<double>(op.tokens[s]);
        queued_[op.client] -= op.tokens[s];
      }
      op.done = slice.last;
      if (op.done < op.tokens.size()) continue;
      scheduler_.remove(name(op.client), slice.id);
      ops_.erase(slice.id);
    }
  }

  double per_weight(size_t client) const { return got[client] / clients_[client].weight; }

  std::vector<double> got;  // tokens by client

 private:
  struct Op {
    size_t client;
    std::vector<int64_t> tokens;
    size_t done = 0;
  };

  static std::string name(size_t client) { return std::to_string(client); }
  int64_t drawn(int64_t n) {
    return static_cast<int64_t>(key_of(seed_, draws_++) % static_cast<uint64_t>(n));
  }

  void send(size_t client) {
    const Client& c = clients_[client];
    while (queued_[client] < 2 * kBudget) {
      Op op{client, {}};
      int64_t total = 0;
      while (total <= c.at_least) {
        op.tokens.push_back(c.all_longest ? c.longest : 1 + drawn(c.longest));
        total += op.tokens.back();
      }
      queued_[client] += total;
      scheduler_.push(name(client), next_id_, op.tokens, true);
      ops_[next_id_++] = std::move(op);
    }
  }

  Scheduler scheduler_{kBudget};
  std::vector<Client> clients_;
  uint64_t seed_, draws_ = 0;
  std::map<int64_t, Op> ops_;
  std::vector<int64_t> queued_;
  int64_t next_id_ = 1;
};

// Between any two batches, however many come between: (the longest that it runs as a piece + the
// longest sequence of all) / weight, of either. A piece is a sequence, or an operation that joins.
void expect_within_the_constant(const std::vector<Client>& clients, uint64_t seed, int batches) {
  Service service(clients, seed);
  int64_t longest = 0;
  for (const Client& c : clients) longest = std::max(longest, c.longest);
  // The least and the most that the first of a pair has been ahead.
  std::map<std::pair<size_t, size_t>, std::pair<double, double>> ahead;
  for (int b = 0; b < batches; ++b) {
    service.batch();
    for (size_t i = 0; i < clients.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        auto& [least, most] = ahead[{i, j}];
        const double now = service.per_weight(i) - service.per_weight(j);
        least = std::min(least, now), most = std::max(most, now);
        const auto of = [&](size_t c) {
          const bool joins = clients[c].at_least < kBudget;
          const int64_t piece = joins ? std::min(kBudget, clients[c].at_least + clients[c].longest)
                                      : clients[c].longest;
          return static_cast<double>(piece + longest) / clients[c].weight;
        };
        ASSERT_LE(most - least, of(i) + of(j) + 1e-6)
            << "clients " << i << " and " << j << ", seed " << seed << ", batch " << b;
      }
    }
  }
}

TEST(Fairness, TwoThatAlwaysHaveTrainingWaitingDifferByTheConstantAtMost) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&](uint64_t n) { return static_cast<int64_t>(key_of(seed, ++draws) % n); };
    std::vector<Client> clients;
    for (int64_t n = 2 + draw(8); n > 0; --n) {
      clients.push_back({.weight = 0.1 + 0.1 * static_cast<double>(draw(40)),
                         .longest = 1 + draw(seed % 2 ? kBudget : 300),
                         .all_longest = draw(2) == 0,
                         .at_least = seed % 4 < 2 ? kBudget : draw(kBudget)});
    }
    expect_within_the_constant(clients, seed, 100);
  }
}

TEST(Fairness, WhoseSequencesFillTheRoomThatLongOnesLeaveIsAheadByTheConstantAtMost) {
  // One of 2,500 tokens a batch; what is left is more than the short ones' weight pays for.
  expect_within_the_constant({{.weight = 1, .longest = 2500, .all_longest = true},
                              {.weight = 0.1, .longest = 100, .all_longest = true}},
                             1, 400);
}

// It holds for sequences of many of its batches' shares each, too.
TEST(Fairness, InTheLongRunEverybodyGetsItsWeight) {
  struct Load {
    int num_short, num_long;
    double weight_short, weight_long;
  };
  for (const Load& load : {Load{40, 5, 1, 1}, {1, 10, 1, 0.01}, {12, 2, 1, 1}, {3, 3, 0.5, 1}}) {
    std::vector<Client> clients;
    double weights = 0, all = 0;
    for (int i = 0; i < load.num_short + load.num_long; ++i) {
      const bool is_short = i < load.num_short;
      clients.push_back({.weight = is_short ? load.weight_short : load.weight_long,
                         .longest = is_short ? 100 : kBudget,
                         .all_longest = true});
      weights += clients.back().weight;
    }
    Service service(clients, 0);
    for (int i = 0; i < 3000; ++i) service.batch();
    for (const double tokens : service.got) all += tokens;
    for (size_t c = 0; c < clients.size(); ++c) {
      EXPECT_NEAR(service.got[c], all * clients[c].weight / weights, 3.0 * kBudget)
          << load.num_short << " short, " << load.num_long << " long, client " << c;
    }
  }
}

}  // namespace
}  // namespace twinkle::engine
