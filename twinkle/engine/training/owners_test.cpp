// Owners of an adapter's factors: their parts, messages and refusals, against one rank.
#include "twinkle/engine/training/owners.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/group/groups_for_test.h"

namespace twinkle::engine {
namespace {

constexpr const char* kAllLinear = R"({"r": 4, "target_modules": "all-linear"})";

ForwardBackward owned_batch(uint64_t seed, size_t sequences = 8) {
  ForwardBackward out{.tenant = "a"};
  for (size_t i = 0; i < sequences; ++i) out.sequences.push_back(drawn(seed + i, 5, 41));
  return out;
}

// The part of a rank, as large as every other's.
ForwardBackward part(ForwardBackward whole, int rank, int size) {
  const size_t n = whole.sequences.size() / static_cast<size_t>(size);
  const auto first = static_cast<size_t>(rank) * n;
  whole.sequences = slice(whole.sequences, {first, first + n});
  return whole;
}

TEST(Owners, AreTheSameOnEveryRankAndEvenToTheLargestTensor) {
  const std::vector<int64_t> sizes{40, 7, 40, 7, 12, 100, 3, 3, 64};
  for (const int n : {2, 3, 4, 8}) {
    std::vector<Owners> of_ranks;
    const auto comms = mesh::thread_comms(n);
    for (const auto& comm : comms) of_ranks.emplace_back(comm.get(), "me", sizes);
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (int r = 0; r < n; ++r) {
        EXPECT_EQ(of_ranks[static_cast<size_t>(r)].of(i), of_ranks[0].of(i));
        EXPECT_EQ(of_ranks[static_cast<size_t>(r)].has(i), of_ranks[0].of(i) == r);
      }
    }
    std::vector<int64_t> held;
    for (int r = 0; r < n; ++r) held.push_back(of_ranks[0].num_elements_of(r));
    EXPECT_EQ(std::accumulate(held.begin(), held.end(), int64_t{0}), 276);
    EXPECT_LE(std::ranges::max(held) - std::ranges::min(held), 100);
  }
}

TEST(Owners, OfSmallAdaptersSpreadOverTheRanksByTheirTenants) {
  const auto comms = mesh::thread_comms(8);
  std::set<int> seen;
  for (int i = 0; i < 64; ++i)
    seen.insert(
        Owners(comms[0].get(), "tenant-" + std::to_string(i), std::vector<int64_t>{9}).of(0));
  EXPECT_EQ(seen.size(), 8u);
}

// One rank's bytes: those of the values, which every rank has, of layouts that every rank makes,
// and 12 for each element of gradients and AdamW's moments that it owns.
TEST(Owners, HoldTheirShareOfGradientsAndMomentsAlone) {
  const model::TinyModel model(smallest_config());
  const ScratchDir folder;
  const EngineOptions options{.model = {.path = model.path()},
                              .parking = {.directory = folder.path().string()}};
  Engine one(options);
  const auto run = [&](Engine& engine, int rank, int size) {
    engine.run<Done>(Create{.tenant = "a", .lora_json = kAllLinear});
    engine.run<ForwardResult>(part(owned_batch(1), rank, size));
    engine.run<StepResult>(Step{.tenant = "a"});
    engine.run<ForwardResult>(part(owned_batch(2), rank, size));
    return engine.parking().resident_bytes;
  };
  const int64_t whole = run(one, 0, 1);
  const int64_t parameters = one.run<InspectResult>(Inspect{"a"}).num_parameters;
  for (const int n : {2, 4}) {
    std::vector<int64_t> bytes(static_cast<size_t>(n));
    on_ranks({n}, options, [&](Engine& engine, int rank, const auto&) {
      bytes[static_cast<size_t>(rank)] = run(engine, rank, n);
    });
    const int64_t all = std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
    EXPECT_EQ(n * whole - all, (n - 1) * 12 * parameters);
    EXPECT_LE(std::ranges::max(bytes) - std::ranges::min(bytes),
              12 * 4 * 24);  // for the elements of one tensor
  }
}

// `mine` is what a rank submits of the eight sequences of a batch.
void expect_the_bytes_of_the_formula(int n, const std::function<ForwardBackward(int rank)>& mine) {
  const model::TinyModel model(smallest_config());
  constexpr int kTokens = 5;
  constexpr int64_t kSequences = 8;
  std::vector<int64_t> of_batch(static_cast<size_t>(n)), of_step(static_cast<size_t>(n));
  int64_t parameters = 0, tensors = 0;
  on_ranks({n}, {.model = {.path = model.path()}}, [&](Engine& engine, int rank, const auto& sent) {
    engine.run<Done>(Create{.tenant = "a", .lora_json = kAllLinear});
    const auto inspected = engine.run<InspectResult>(Inspect{"a", true});
    int64_t before = sent.all_to_all;
    engine.run<ForwardResult>(mine(rank));
    of_batch[static_cast<size_t>(rank)] = sent.all_to_all - std::exchange(before, sent.all_to_all);
    engine.run<StepResult>(Step{.tenant = "a", .max_grad_norm = 0.1});
    of_step[static_cast<size_t>(rank)] = sent.all_to_all - before;
    if (rank > 0) return;
    parameters = inspected.num_parameters;
    tensors = std::ssize(inspected.tensors) / 2;  // each with its gradient
  });
  const auto sum = [](const auto& x) { return std::accumulate(x.begin(), x.end(), int64_t{0}); };
  // A rank sends its sequences' gradients to their owners, and to each other rank its rows and,
  // of the operation and of its tenant, whether all is finite.
  EXPECT_EQ(sum(of_batch),
            4 * (n - 1) * (parameters * kSequences / n + kSequences * kTokens + 2 * n));
  // And its factors, a double for each, and whether each can be stepped.
  EXPECT_EQ(sum(of_step), (n - 1) * (4 * parameters + 8 * tensors + 256 * n));
  const int64_t most = 4 * 4 * 24 * kSequences;  // for the elements of one tensor
  EXPECT_LE(std::ranges::max(of_batch) - std::ranges::min(of_batch), most);
}

// Whoever submits the sequences: each rank a part, or one all of them.
TEST(Owners, AreSentTheBytesOfTheFormula) {
  for (const int n : {2, 4}) {
    for (const bool by_one : {false, true}) {
      SCOPED_TRACE(std::to_string(n) + (by_one ? " ranks, by one" : " ranks"));
      expect_the_bytes_of_the_formula(n, [&](int rank) {
        if (!by_one) return part(owned_batch(1), rank, n);
        return rank == 0 ? owned_batch(1) : ForwardBackward{.tenant = "a"};
      });
    }
  }
}

// Rates of SGD so large that in the end one factor, on one rank, would leave the finite numbers.
TEST(Owners, RefuseAStepThatOneOfThemCannotTakeAsOneRankDoes) {
  const model::TinyModel model(smallest_config());
  const auto life = [](Engine& engine, int rank, int size) {
    std::string out;
    const auto step = [&](const char* options) {
      try {
        const auto result = engine.run<StepResult>(
            Step{.tenant = "a", .optimizer = "SGD", .options = options, .none_is_zero = true});
        out += std::to_string(result.step) + '\n';
      } catch (const Error& e) {
        out += std::string(e.what()) + '\n';
      }
    };
    engine.run<Done>(Create{.tenant = "a", .lora_json = kAllLinear});
    engine.run<ForwardResult>(part(owned_batch(1), rank, size));
    step(R"({"lr": 1e38, "momentum": 0.99, "weight_decay": 0})");
    for (int i = 0; i < 400; ++i) step(R"({"lr": 3e38, "momentum": 0.99, "weight_decay": 0})");
    step(R"({"lr": 1e30, "weight_decay": 1e30})");
    const auto inspected = engine.run<InspectResult>(Inspect{"a"});
    return out + std::to_string(inspected.weights) + ' ' + std::to_string(inspected.optimizer);
  };
  const EngineOptions options{.model = {.path = model.path()}};
  Engine one(options);
  const std::string alone = life(one, 0, 1);
  EXPECT_NE(alone.find("would leave NaN or infinity in"), std::string::npos) << alone;
  on_ranks({2}, options, [&](Engine& engine, int rank, const auto&) {
    EXPECT_EQ(life(engine, rank, 2), alone) << rank;
  });
}

}  // namespace
}  // namespace twinkle::engine
