#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <set>

#include "twinkle/base/random.h"
#include "twinkle/engine/schedule/scheduler.h"

namespace twinkle::engine {
namespace {

constexpr int64_t kBudget = 4096;

struct Client {
  std::string name = "a";
  Share share = {};
  int64_t longest = 256;  // sequence; lengths are drawn from 1 to it, or all are it
  bool all_longest = false;
  int64_t at_least = kBudget;  // tokens of an operation, up to a sequence more
  bool steps = false;          // between any two operations
  bool waits = false;          // for the result of its step, and a drawn time, before it sends more
};

// A scheduler's clients, and what each was due, and got, batch by batch.
class Service {
 public:
  // Of a client, in a batch that was formed while it had sequences to run, and nobody of a higher
  // priority had. In tokens.
  struct Row {
    double share;  // of the batch, by weight among those that have sequences, or had a batch ago
    double due;    // that, or all that it could have run
    double got;
  };

  Service(std::vector<Client> clients, uint64_t seed) : clients_(std::move(clients)), seed_(seed) {
    for (const Client& c : clients_) scheduler_.set_share(c.name, c.share);
    away_.resize(clients_.size());
  }

  void hog(Share share) {
    scheduler_.set_share("hog", share);
    clients_.push_back({.name = "hog", .share = share, .at_least = 100 * kBudget});
    away_.push_back(0);
  }

  void batch() {
    for (size_t c = 0; c < clients_.size(); ++c) send(c);
    for (const int64_t head : scheduler_.heads()) end(head);
    std::map<std::string, double> runnable, got;
    std::map<int32_t, double, std::greater<>> weights;
    for (const Client& c : clients_) {
      if ((runnable[c.name] = can_run(c.name)) > 0) weights[c.share.priority] += c.share.weight;
    }
    for (const Client& c : clients_) {
      const bool missing = runnable[c.name] == 0 && was_here_.contains(c.name);
      if (missing && weights.contains(c.share.priority))
        weights[c.share.priority] += c.share.weight;
    }
    was_here_.clear();
    for (const Client& c : clients_) {
      if (runnable[c.name] > 0) was_here_.insert(c.name);
    }
    double total = 0;  // of the highest priority
    for (const Slice& slice : scheduler_.next_batch()) {
      Op& op = ops_.at(slice.id);
      for (size_t s = slice.first; s < slice.last; ++s)
        got[op.client] += static_cast<double>(op.tokens[s]);
      op.done = slice.last;
      if (op.done == op.tokens.size()) end(slice.id);
    }
    if (weights.empty()) return;
    const int32_t highest = weights.begin()->first;
    const double weight = weights.begin()->second;
    const auto counts = [&](const Client& c) {
      return runnable[c.name] > 0 && c.share.priority == highest;
    };
    for (const Client& c : clients_) total += counts(c) ? got[c.name] : 0;
    for (const Client& c : clients_) {
      if (!counts(c)) continue;
      const double share = total * c.share.weight / weight;
      rows[c.name].push_back({share, std::min(runnable[c.name], share), got[c.name]});
    }
  }

  uint64_t below(uint64_t n) { return key_of(seed_, draws_++) % n; }

  std::map<std::string, std::vector<Row>> rows;

 private:
  struct Op {
    std::string client;
    std::vector<int64_t> tokens;
    size_t done = 0;
  };

  void send(size_t index) {
    const Client& c = clients_[index];
    auto& queue = queued_[c.name];
    if (c.waits && !queue.empty()) return;
    if (c.waits && away_[index]-- > 0) return;
    while (std::ssize(queue) < (c.waits ? 1 : 8)) {
      Op op{c.name, {}, 0};
      for (int64_t n = 0; n <= c.at_least;) {
        op.tokens.push_back(
            c.all_longest ? c.longest
                          : 1 + static_cast<int64_t>(below(static_cast<uint64_t>(c.longest))));
        n += op.tokens.back();
      }
      push(std::move(op));
      if (c.steps) push({c.name, {}, 0});
    }
    away_[index] = static_cast<int64_t>(below(3));
  }

  void push(Op op) {
    scheduler_.push(op.client, next_id_, op.tokens, true);
    queued_[op.client].push_back(next_id_);
    ops_[next_id_++] = std::move(op);
  }

  void end(int64_t id) {
    scheduler_.remove(id);
    std::erase(queued_[ops_.at(id).client], id);
    ops_.erase(id);
  }

  double can_run(const std::string& name) {
    int64_t out = 0;
    for (const int64_t id : queued_[name]) {
      const Op& op = ops_.at(id);
      if (op.tokens.empty()) break;
      for (size_t s = op.done; s < op.tokens.size(); ++s) out += op.tokens[s];
    }
    return static_cast<double>(out);
  }

  Scheduler scheduler_{kBudget};
  std::vector<Client> clients_;
  uint64_t seed_, draws_ = 0;
  std::vector<int64_t> away_;
  std::set<std::string> was_here_;  // with sequences to run, when the last batch was formed
  std::map<int64_t, Op> ops_;
  std::map<std::string, std::deque<int64_t>> queued_;
  int64_t next_id_ = 1;
};

// What a client got of its due in the worst window of 20 batches, when `slack` tokens are added, of
// those in which it was due at least `floor` tokens.
double worst(const std::vector<Service::Row>& rows, double slack, double Service::Row::* due,
             double floor = 0) {
  double out = 1e9;
  for (size_t from = 0; from + 20 <= rows.size(); ++from) {
    double got = slack, all = 0;
    for (size_t b = from; b < from + 20; ++b) {
      got += rows[b].got;
      all += rows[b].*due;
    }
    if (all >= floor) out = std::min(out, got / all);
  }
  return out;
}

// Beside a hog of the same weight, with operations from `at_least` tokens up.
std::vector<Service::Row> beside_a_hog(Client client, uint64_t seed) {
  Service service({client}, seed);
  service.hog({client.share.weight, 0});
  for (int i = 0; i < 150; ++i) service.batch();
  return service.rows["a"];
}

TEST(Fairness,
     ATenantThatStepsBetweenItsOperationsGetsFourFifthsOfItsWeightUpToWholeBatchSequences) {
  for (const int64_t longest : {256, 1000, 2048, 3000, 4096}) {
    for (const bool all : {false, true}) {
      for (uint64_t seed = 0; seed < 3; ++seed) {
        const auto rows =
            beside_a_hog({.longest = longest, .all_longest = all, .steps = true}, seed);
        EXPECT_GE(worst(rows, 0, &Service::Row::share), 0.8) << longest << all << seed;
      }
    }
  }
}

// Below four of them no scheduler could: of equal tenants whose shares are just less than four
// whole sequences, some get three.
TEST(Fairness, EachOfManyGetsFourFifthsOfItsWeightWhereThatIsSixOfTheLongestSequences) {
  for (const int n : {1, 3, 6, 8, 16}) {
    for (const double weight : {1.0, 0.25, 2.0}) {
      for (const int64_t longest : {128, 512, 1000, 2048, 3000, 4096}) {
        // An operation of a whole batch takes two where another is in it, and then its step is due.
        if (n == 1 && weight > 1) continue;
        for (uint64_t seed = 0; seed < 8; ++seed) {
          std::vector<Client> clients{{.share = {weight, 0}}};
          for (int i = 1; i < n; ++i) {
            const double drawn = seed % 4 < 2 ? 1.0 : 0.5 + 0.25 * (i % 5);
            clients.push_back({.name = std::to_string(i), .share = {drawn, 0}});
          }
          for (Client& c : clients) {
            c.longest = longest, c.all_longest = seed % 2 == 1, c.steps = true;
          }
          Service service(clients, seed);
          service.hog({1, 0});
          for (int i = 0; i < 120; ++i) service.batch();
          for (const Client& c : clients) {
            EXPECT_GE(worst(service.rows[c.name], 0, &Service::Row::share,
                            6 * static_cast<double>(longest)),
                      0.8)
                << n << " clients, the first of weight " << weight << ", up to " << longest
                << " tokens, seed " << seed << ", client " << c.name;
          }
        }
      }
    }
  }
}

// Of sequences that are many of its batches' shares each, too.
TEST(Fairness, InTheLongRunEverybodyGetsItsWeight) {
  struct Load {
    int num_short, num_long;
    double weight_short, weight_long;
  };
  for (const Load& load : {Load{40, 5, 1, 1}, {1, 10, 1, 0.01}, {12, 2, 1, 1}, {3, 3, 0.5, 1}}) {
    std::vector<Client> clients;
    double weights = 0;
    for (int i = 0; i < load.num_short + load.num_long; ++i) {
      const bool is_short = i < load.num_short;
      const double weight = is_short ? load.weight_short : load.weight_long;
      clients.push_back({.name = std::to_string(i), .share = {weight, 0}});
      clients.back().longest = is_short ? 100 : kBudget;
      clients.back().all_longest = true;
      weights += weight;
    }
    Service service(clients, 0);
    for (int i = 0; i < 3000; ++i) service.batch();
    double all = 0;
    std::map<std::string, double> got;
    for (const auto& [name, rows] : service.rows) {
      for (const auto& row : rows) all += row.got, got[name] += row.got;
    }
    for (const Client& c : clients) {
      EXPECT_NEAR(got[c.name], all * c.share.weight / weights, 3.0 * kBudget)
          << load.num_short << " short, " << load.num_long << " long, client " << c.name;
    }
  }
}

TEST(Fairness, ATenantThatWaitsForEachStepGetsFourFifthsOfWhatItHadQueued) {
  for (const int64_t longest : {256, 1000, 2048, 3000, 4096}) {
    for (const int64_t at_least : {100, 2000, 3000, 6000}) {
      for (uint64_t seed = 0; seed < 3; ++seed) {
        const auto rows = beside_a_hog(
            {.longest = longest, .at_least = at_least, .steps = true, .waits = true}, seed);
        EXPECT_GE(worst(rows, 0, &Service::Row::due), 0.8) << longest << ' ' << at_least << seed;
      }
    }
  }
}

TEST(Fairness, WhateverTheWeightsPrioritiesLengthsAndHabitsNobodyFallsFurtherBehind) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    uint64_t draws = 0;
    const auto draw = [&](uint64_t n) { return static_cast<int64_t>(key_of(seed, ++draws) % n); };
    const int64_t longest = 1 + draw(kBudget), priorities = 1 + draw(3);
    std::vector<Client> clients;
    for (int64_t n = 1 + draw(10), i = 0; i < n; ++i) {
      const Share share{0.1 + 0.1 * static_cast<double>(draw(40)),
                        static_cast<int32_t>(draw(static_cast<uint64_t>(priorities)))};
      clients.push_back({std::to_string(i), share, longest - draw(static_cast<uint64_t>(longest)),
                         draw(2) == 0, draw(6000), draw(2) == 0, draw(2) == 0});
    }
    Service service(clients, seed);
    service.hog({1, 0});
    for (int i = 0; i < 80; ++i) service.batch();
    for (const auto& [name, rows] : service.rows) {
      EXPECT_GE(worst(rows, 2.0 * static_cast<double>(longest), &Service::Row::due), 0.8)
          << "seed " << seed << ", client " << name;
    }
  }
}

}  // namespace
}  // namespace twinkle::engine
