// Groups that share the base: what one rank finds or fails in concerns all.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <limits>
#include <span>
#include <stdexcept>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/engine.h"
#include "twinkle/engine/exactness/outcomes_for_test.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/mesh/thread_comm.h"

namespace twinkle::engine {
namespace {

constexpr int kRanks = 3;

// Fails in the middle of this many gathers more; below 0: never.
class FailingComm : public mesh::CountingComm {
 public:
  explicit FailingComm(std::unique_ptr<mesh::Comm> comm)
      : CountingComm(*comm), kept_(std::move(comm)) {}

  void gather_into(at::Tensor& all, const at::Tensor& x) override {
    if (left-- == 0) at::empty({int64_t{1} << 58}, at::kByte);  // throws what torch does
    CountingComm::gather_into(all, x);
  }
  std::atomic<int> left = -1;

 private:
  std::unique_ptr<mesh::Comm> kept_;
};

// Runs `script` of every rank in a thread of its own, with its engine's group and base.
void on_groups(const std::function<void(Group group, FailingComm& base)>& script) {
  auto door = mesh::thread_comms(kRanks), control = mesh::thread_comms(kRanks),
       data = mesh::thread_comms(kRanks), saves = mesh::thread_comms(kRanks),
       base = mesh::thread_comms(kRanks);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      auto shared = std::make_unique<FailingComm>(std::move(base[r]));
      FailingComm& failing = *shared;
      script({std::move(door[r]), std::move(control[r]), std::move(data[r]), std::move(saves[r]),
              nullptr, std::move(shared)},
             failing);
    });
  }
  for (std::thread& t : threads) t.join();
}

ForwardBackward sharded_training() {
  ForwardBackward out{.tenant = "a"};
  out.sequences.push_back(drawn(1, 6, 41));
  return out;
}

Sample sharded_sampling() {
  return {.tenant = "a", .prompts = {{5, 6}}, .params = {{.max_tokens = 6, .seed = 1}}};
}

class ShardedOperations : public testing::TestWithParam<bool> {};

TEST_P(ShardedOperations, ThatARankFailsInTheMiddleOfEndOnEveryRankWithItsCause) {
  const model::TinyModel model(smallest_config());
  const Operation operation =
      GetParam() ? Operation(sharded_training()) : Operation(sharded_sampling());
  on_groups([&](Group group, FailingComm& base) {
    const bool fails = group.rank() == 1;
    Engine engine({.model = {.path = model.path()}}, in_letters, std::move(group));
    engine.run<Done>(
        Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": "all-linear"})"});
    engine.submit(operation).get();
    if (fails) base.left = 2;
    const std::string why = error_of([&] { engine.submit(operation).get(); });
    EXPECT_NE(why.find("rank 1 "), std::string::npos) << why;
    EXPECT_TRUE(why.ends_with("the machine has no memory left for this: make it smaller")) << why;
    EXPECT_THROW(engine.submit(operation).get(), Error) << "the group is over";
  });
}

INSTANTIATE_TEST_SUITE_P(All, ShardedOperations, testing::Values(true, false),
                         [](const auto& of) { return of.param ? "Training" : "Sampling"; });

TEST(Sharded, ADamagedPartOfTheFilesIsTheErrorOfAllRanks) {
  const JsonObject config = smallest_config();
  auto weights = model::tiny_weights(config);
  at::Tensor& last = weights.at("model.layers.0.mlp.down_proj.weight");
  last.view({-1})[-1] = std::numeric_limits<float>::quiet_NaN();
  const ScratchDir dir;
  model::write_tiny(dir.path(), config, weights);
  on_groups([&](Group group, FailingComm&) {
    const std::string why = invalid_of([&] {
      const Engine engine({.model = {.path = dir.path().string()}}, in_letters, std::move(group));
    });
    EXPECT_NE(why.find("model.layers.0.mlp.down_proj.weight of "), std::string::npos) << why;
    EXPECT_NE(why.find("holds NaN or infinity"), std::string::npos) << why;
  });
}

TEST(Sharded, WhatOneRankAloneCannotOpenOrHoldIsTheErrorOfAllRanks) {
  const model::TinyModel model(smallest_config());
  const ScratchDir nothing;
  const auto why_not = [&](const EngineOptions& of_rank_1) {
    std::array<std::string, kRanks> out;
    on_groups([&](Group group, FailingComm&) {
      const int rank = group.rank();
      EngineOptions options{.model = {.path = model.path()}};
      if (rank == 1) options = of_rank_1;
      out[static_cast<size_t>(rank)] =
          error_of([&] { const Engine engine(options, in_letters, std::move(group)); });
    });
    for (const std::string& of_rank : out) EXPECT_EQ(of_rank, out[0]);
    return out[0];
  };
  const std::string of_files = why_not({.model = {.path = nothing.path().string()}});
  EXPECT_TRUE(of_files.starts_with("engine: rank 1: io: ")) << of_files;
  EXPECT_NE(of_files.find(" holds no weights"), std::string::npos) << of_files;
  // More than a thousandth of any machine.
  const std::string of_memory =
      why_not({.model = {.path = model.path(), .memory_share = 0.001},
               .sampler = {.kv_tokens = std::numeric_limits<int32_t>::max()}});
  EXPECT_TRUE(of_memory.starts_with("engine: rank 1: engine: ")) << of_memory;
  EXPECT_NE(of_memory.find("lower"), std::string::npos) << of_memory;
}

TEST(Sharded, ADecodeThatFailsOnOneRankAloneEndsTheGroup) {
  const model::TinyModel model(smallest_config());
  on_groups([&](Group group, FailingComm&) {
    const bool fails = group.rank() == 1;
    const Decoders decoders = [fails](const std::string& tokenizer) -> Decode {
      if (!fails) return in_letters(tokenizer);
      return [](std::span<const int32_t>) -> std::string {
        throw std::runtime_error("its own trouble");
      };
    };
    Engine engine({.model = {.path = model.path()}}, decoders, std::move(group));
    engine.run<Done>(Create{.tenant = "a", .frozen = true});
    Sample op = sharded_sampling();
    op.params[0].stop = {"no such text"};
    const std::string why = error_of([&] { engine.submit(op).get(); });
    EXPECT_NE(why.find("rank 1: its own trouble"), std::string::npos) << why;
  });
}

TEST(Sharded, GatheredBytesOfABaseThatIsWholeEverywhereAreRefused) {
  const model::TinyModel model(smallest_config());
  const std::string why = invalid_of(
      [&] { const Engine engine({.model = {.path = model.path(), .gathered_bytes = 5}}); });
  EXPECT_EQ(why,
            "engine: gathered_bytes is 5, but every rank holds all weights of the base: leave it "
            "out, or give ranks to fsdp_size");
}

}  // namespace
}  // namespace twinkle::engine
