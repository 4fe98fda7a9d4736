// A client that waits for its step's result before it sends more, and so misses a batch each time,
// beside one that has a hundred times the tokens queued.
#include "twinkle/engine/schedule/dispatched_for_test.h"

namespace twinkle::engine {
namespace {

constexpr int64_t kBudget = 400;
constexpr size_t kWindow = 20, kBatches = 120;

struct Batch {
  double client = 0, all = 0;  // tokens
};

class WaitingClients : public Dispatched {
 protected:
  // Tokens by batch. The client sends while a batch runs, when it has its result, and so comes too
  // late for that one, always.
  std::vector<Batch> beside_a_hog(double weight, size_t num_sequences, size_t length) {
    open({.token_budget = kBudget, .gather_ms = 0});
    create("client", weight);
    create("hog");
    std::vector<Batch> out;
    std::vector<Future> round;  // the client's, on the dispatcher's thread
    executor_.on_batch = [&] {
      Batch& batch = out.emplace_back();
      for (const Work& w : executor_.batches.back()) {
        const bool mine = tenant_of(*w.operation) == "client";
        const auto tokens = static_cast<double>((w.last - w.first) * (mine ? length : 20));
        batch.client += mine ? tokens : 0;
        batch.all += tokens;
      }
      if (out.size() >= kBatches) return;
      if (round.empty() || round[1].wait_for(std::chrono::seconds(0)) == std::future_status::ready)
        round = dispatcher_->submit({work("client", num_sequences, length), Step{"client"}});
    };
    submit(work("hog", kBatches * kBudget / 20, 20)).get();
    for (Future& gone : dispatcher_->submit({Delete{"client"}, Delete{"hog"}})) gone.get();
    dispatcher_.reset();
    EXPECT_GE(out.size(), kBatches);
    out.resize(kBatches);
    return out;
  }
};

double worst(const std::vector<Batch>& batches, double share) {
  double out = 1e9;
  for (size_t from = 0; from + kWindow <= batches.size(); ++from) {
    Batch sum;
    for (size_t b = from; b < from + kWindow; ++b) {
      sum.client += batches[b].client;
      sum.all += batches[b].all;
    }
    out = std::min(out, sum.client / (sum.all * share));
  }
  return out;
}

TEST_F(WaitingClients, WhoMissesABatchARoundGetsFourFifthsOfItsWeightWithFourSharesInARound) {
  for (const double weight : {1.0, 0.5, 2.0}) {
    const double share = weight / (weight + 1);
    for (const size_t length : {5, 20, 50}) {
      for (const double shares : {4.0, 6.5, 11.0}) {
        const auto n = static_cast<size_t>(shares * share * kBudget / static_cast<double>(length));
        EXPECT_GE(worst(beside_a_hog(weight, n + 1, length), share), 0.8)
            << weight << ' ' << length << ' ' << shares;
      }
    }
  }
}

}  // namespace
}  // namespace twinkle::engine
