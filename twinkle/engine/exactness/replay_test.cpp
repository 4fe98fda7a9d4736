// Routed experts that an operation gives, in place of those that the routers choose, and those that
// a forward or a sample tells: the same bits however a batch is cut, and what cannot be is refused
// by its place. The numbers against transformers': tests/parity/families/test_replay.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/exactness/routed_for_test.h"
#include "twinkle/engine/group/groups_for_test.h"

namespace twinkle::engine {
namespace {

std::vector<Example> sequences() { return {drawn(1, 30), drawn(2, 7), drawn(3, 12)}; }

// Ids that no router would choose, some rows of them left to the routers.
std::vector<Example> routed(uint64_t seed) {
  std::vector<Example> out = sequences();
  for (Example& s : out) {
    for (size_t row = 0; row < s.input_ids.size() * kRouted; ++row) {
      const auto first = static_cast<int32_t>(key_of(seed, row) % kExperts);
      const bool left = row % 7 == 3;
      s.routed_experts.push_back(left ? -1 : (first + 2) % static_cast<int32_t>(kExperts));
      s.routed_experts.push_back(left ? -1 : first);
    }
  }
  return out;
}

// Ascending in each row; rows that are left to the router are as in `own`.
std::vector<int32_t> settled(std::vector<int32_t> given, const std::vector<int32_t>& own) {
  for (size_t i = 0; i < given.size(); i += kTopK) {
    if (given[i] == -1) std::copy_n(own.begin() + static_cast<ptrdiff_t>(i), kTopK, &given[i]);
    std::sort(&given[i], &given[i] + kTopK);
  }
  return given;
}

class RouteReplay : public RoutedOnEngine {};

Forward scored(std::vector<Example> of) {
  return {.tenant = "a", .sequences = std::move(of), .routed_experts = true};
}

struct ReplayNumbers {
  ForwardResult told, learned;
  uint64_t gradients = 0;
  bool operator==(const ReplayNumbers&) const = default;
};

struct Ask {
  std::vector<Example> sequences = {};
  double coefficient = 0;  // coefficient of the auxiliary loss
};

// Results of a forward and a forward_backward, each in one pass with another tenant's
// forward_backward.
ReplayNumbers replay_numbers(Engine& engine, const Ask& mine, const Ask& theirs = {}) {
  const auto learning = [](const std::string& tenant, const Ask& of) {
    return ForwardBackward{
        .tenant = tenant, .sequences = of.sequences, .router_aux_loss_coef = of.coefficient};
  };
  const auto result = [&](const Operation& first) {
    std::vector<Operation> operations{first};
    if (!theirs.sequences.empty()) operations.push_back(learning("b", theirs));
    auto futures = engine.submit(std::move(operations));
    if (futures.size() > 1) futures[1].get();
    return std::get<ForwardResult>(futures[0].get());
  };
  ReplayNumbers out{.told = result(scored(mine.sequences)), .learned = result(learning("a", mine))};
  out.gradients = engine.run<InspectResult>(Inspect{"a"}).gradients;
  return out;
}

TEST_F(RouteReplay, OfWhatTheRoutersChoseHasTheBitsOfTheirChoice) {
  const ReplayNumbers own = replay_numbers(*engine(), {sequences()});
  std::vector<Example> again = sequences();
  for (size_t s = 0; s < again.size(); ++s) {
    again[s].routed_experts = own.told.routed_experts[s];
    EXPECT_EQ(std::ssize(again[s].routed_experts),
              std::ssize(again[s].input_ids) * kRouted * kTopK);
  }
  EXPECT_TRUE(replay_numbers(*engine(), {again}) == own);
}

TEST_F(RouteReplay, OfOthersGoesWhereTheySayAndLeavesTheRestToTheRouters) {
  const ReplayNumbers own = replay_numbers(*engine(), {sequences()}),
                      other = replay_numbers(*engine(), {routed(1)});
  EXPECT_NE(other.gradients, own.gradients);
  EXPECT_NE(other.told.logps, own.told.logps);
  EXPECT_EQ(other.told.logps, other.learned.logps);
  // Routes of the first layer, whose inputs are the same in both.
  const std::vector<int32_t>&chose = own.told.routed_experts[0],
        &went = other.told.routed_experts[0];
  const std::vector<int32_t> want = settled(routed(1)[0].routed_experts, chose);
  for (size_t i = 0; i < went.size(); i += kRouted * kTopK)
    EXPECT_TRUE(std::equal(&went[i], &went[i] + kTopK, &want[i])) << i;
}

TEST_F(RouteReplay, HasTheSameBitsHoweverTheBatchIsCutAndWhoeverSharesIt) {
  const Ask both{routed(1), 0.05}, neither{sequences()};
  for (const Ask& mine : {both, neither}) {
    const ReplayNumbers want = replay_numbers(*engine(), mine);
    EXPECT_EQ(want.learned.aux_loss > 0, mine.coefficient > 0);
    for (const Ask& theirs : {neither, Ask{routed(2), 0.3}})
      EXPECT_TRUE(replay_numbers(*engine(), mine, theirs) == want);
    EXPECT_TRUE(replay_numbers(*engine(20), mine) == want);
    EXPECT_TRUE(replay_numbers(*engine(20, 1), mine) == want);
  }
  const ReplayNumbers want = replay_numbers(*engine(), {routed(1)});
  on_ranks({.dp = 2}, options(), [&](Engine& of_rank, int rank, const mesh::SentBytes&) {
    create(of_rank);
    const Part part = rank == 0 ? Part{0, 2} : Part{2, 3};
    const ReplayNumbers got = replay_numbers(of_rank, {slice(routed(1), part)});
    EXPECT_EQ(got.gradients, want.gradients);
    EXPECT_EQ(got.told.routed_experts, slice(want.told.routed_experts, part));
    EXPECT_EQ(got.told.logps, slice(want.told.logps, part));
  });
}

// Whatever pages there are, and whoever shares them, a forward of the same tokens went there.
TEST_F(RouteReplay, ASampleTellsWhereItsTokensWent) {
  Sample plain{.tenant = "a", .prompts = {drawn(1, 70).input_ids, drawn(2, 9).input_ids}};
  plain.prompts.push_back(plain.prompts[0]);
  plain.prompts[2].push_back(3);  // begins with the same page
  plain.params = {{.max_tokens = 60, .seed = 4, .num_samples = 2, .ignore_eos = true}};
  Sample asks = plain;
  asks.params[0].routed_experts = true;
  EngineOptions tight = options();
  tight.sampler = {.kv_tokens = 320, .max_sequences = 4, .prefill_tokens = 7};  // some come again
  for (const EngineOptions& of : {options(), tight}) {
    Engine made(of);
    create(made);
    auto futures = made.submit(std::vector<Operation>{plain, asks, plain});
    const auto before = std::get<SampleResult>(futures[0].get());
    const auto got = std::get<SampleResult>(futures[1].get());
    futures[2].get();
    for (size_t p = 0; p < asks.prompts.size(); ++p) {
      for (size_t i = 0; i < 2; ++i) {
        const Completion& c = got.completions[p][i];
        EXPECT_EQ(c.tokens, before.completions[p][i].tokens);
        EXPECT_TRUE(before.completions[p][i].routed_experts.empty());
        Example whole{.input_ids = asks.prompts[p]};
        whole.input_ids.insert(whole.input_ids.end(), c.tokens.begin(), c.tokens.end() - 1);
        EXPECT_EQ(made.run<ForwardResult>(scored({whole})).routed_experts[0], c.routed_experts);
      }
    }
    on_ranks({.dp = 2}, of, [&](Engine& of_rank, int rank, const mesh::SentBytes&) {
      create(of_rank);
      const Part part = rank == 0 ? Part{0, 1} : Part{1, 3};
      auto mine = of_rank.submit(sliced(asks, part));
      EXPECT_EQ(std::get<SampleResult>(mine.get()).completions, slice(got.completions, part));
    });
  }
}

TEST_F(RouteReplay, WhatCannotBeIsRefusedByItsPlace) {
  const auto made = engine();
  const auto refusal = [&](const auto& change) {
    Forward op = scored(routed(1));
    change(op.sequences[1].routed_experts);
    return error_of([&] { made->run<ForwardResult>(op); });
  };
  const std::string place = "engine: sequence 1: routed_experts";
  EXPECT_EQ(refusal([](auto& ids) { ids.pop_back(); }),
            place +
                " has 27 entries, it must have 2 for each token and layer with experts (7 x 2 x "
                "2)");
  EXPECT_EQ(refusal([](auto& ids) { ids[6] = 6; }),  // it leaves the row's other at -1
            place +
                " of token 1 in layer 2 has expert -1, the model's are 0 to 5; where the router "
                "is to choose, all of a token's are -1");
  EXPECT_EQ(refusal([](auto& ids) { ids[4] = 6; }),
            place +
                " of token 1 in layer 0 has expert 6, the model's are 0 to 5; where the router "
                "is to choose, all of a token's are -1");
  EXPECT_EQ(refusal([](auto& ids) { ids[9] = ids[8]; }),
            place + " of token 2 in layer 0 has expert " +
                std::to_string(routed(1)[1].routed_experts[8]) + " twice, each may come once");
}

TEST(RouteReplayOfAModelWithoutExperts, IsRefused) {
  const model::TinyModel model;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "a", .frozen = true});
  Forward op = scored(sequences());
  const auto refusal = [&] { return error_of([&] { engine.run<ForwardResult>(op); }); };
  EXPECT_EQ(refusal(),
            "engine: forward: routed_experts is asked for, but the model has no routed experts; "
            "leave it out");
  Sample sample{.tenant = "a", .prompts = {{1, 2}}, .params = {{.routed_experts = true}}};
  EXPECT_EQ(error_of([&] { engine.run<SampleResult>(sample); }),
            "engine: sample: routed_experts is asked for, but the model has no routed experts; "
            "leave it out");
  op.sequences = routed(1);
  EXPECT_EQ(refusal(),
            "engine: sequence 0: routed_experts is given, but the model has no routed experts; "
            "leave it out");
}

}  // namespace
}  // namespace twinkle::engine
