// Engines of one group, whose ranks are threads, against one engine alone: the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/parallel.h"
#include "twinkle/engine/exactness/schedules_for_test.h"
#include "twinkle/engine/exactness/sent_for_test.h"

namespace twinkle::engine {
namespace {

// The part of an operation that a rank submits: ranks' follow one another, some have nothing.
Part drawn_part(size_t count, int rank, int size, uint64_t key) {
  std::vector<size_t> ends;
  for (int r = 1; r < size; ++r) ends.push_back(draw(key, count + 1));
  std::ranges::sort(ends);
  ends.insert(ends.begin(), 0);
  ends.push_back(count);
  return {ends[static_cast<size_t>(rank)], ends[static_cast<size_t>(rank) + 1]};
}

std::string text_or_error(const std::function<Result()>& result) {
  try {
    return OutcomeText().of(result());
  } catch (const Error& e) {
    return e.what();
  }
}

using Lines = std::vector<std::string>;
using ByTenant = std::map<size_t, Lines>;

// The workload: lives of tenants that are drawn from a seed, of so many operations in all.
struct Lives {
  uint64_t seed;
  size_t tenants;
  uint64_t operations;

  std::vector<Owned> in(const std::string& folder) const {
    return some_schedule(seed, folder, tenants, operations);
  }
  Part part(const Operation& operation, size_t i, int rank, int size) const {
    return drawn_part(num_items(operation), rank, size, key_of(seed, i));
  }
};

// Every operation when the one before it has ended, of all tenants or of one: of each rank's part
// what comes of it.
std::vector<ByTenant> of_one(const EngineOptions& options, const Lives& lives, int size,
                             std::optional<size_t> tenant = {}) {
  const ScratchDir scratch;
  const std::string folder = scratch.path().string();
  Engine engine(options, in_letters);
  std::vector<ByTenant> out(static_cast<size_t>(size));
  const std::vector<Owned> schedule = lives.in(folder);
  for (size_t i = 0; i < schedule.size(); ++i) {
    const Owned& item = schedule[i];
    if (tenant && item.tenant != *tenant) continue;
    Future future = [&]() -> Future {
      try {
        return engine.submit(item.operation);
      } catch (const Error&) {
        std::promise<Result> refused;
        refused.set_exception(std::current_exception());
        return {refused.get_future()};
      }
    }();
    const std::shared_future<Result> whole = future.share();
    for (int r = 0; r < size; ++r) {
      const Part part = lives.part(item.operation, i, r, size);
      out[static_cast<size_t>(r)][item.tenant].push_back(
          without(text_or_error([&] { return part_of(whole.get(), part); }), folder));
    }
  }
  return out;
}

// All at once.
std::vector<ByTenant> of_group(const EngineOptions& options, const Lives& lives, const Mesh& of) {
  const ScratchDir scratch;
  const std::string folder = scratch.path().string();
  const std::vector<Owned> schedule = lives.in(folder);
  std::vector<ByTenant> out(static_cast<size_t>(of.size()));
  on_ranks(of, options, [&](Engine& engine, int rank, const auto&) {
    std::vector<std::function<Result()>> results;
    for (size_t i = 0; i < schedule.size(); ++i) {
      const Operation& whole = schedule[i].operation;
      const Part part = lives.part(whole, i, rank, of.size());
      try {
        results.push_back([future = std::make_shared<Future>(engine.submit(sliced(whole, part)))] {
          return future->get();
        });
      } catch (const Error&) {
        results.push_back(
            [error = std::current_exception()]() -> Result { std::rethrow_exception(error); });
      }
    }
    for (size_t i = 0; i < schedule.size(); ++i)
      out[static_cast<size_t>(rank)][schedule[i].tenant].push_back(
          without(text_or_error(results[i]), folder));
  });
  return out;
}

// dp, fsdp and both, of 2 to 8 ranks.
constexpr Mesh kMeshes[] = {{2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {7, 1}, {8, 1},
                            {1, 2}, {1, 3}, {1, 4}, {1, 5}, {1, 6}, {1, 7}, {1, 8},
                            {2, 2}, {2, 3}, {3, 2}, {2, 4}, {4, 2}};

// Options of a group that are drawn from a seed, and those of the one rank that it is compared
// with: of the same arithmetic, and with other budgets.
EngineOptions group_options(const model::TinyModel& model, uint64_t seed, const Mesh& of) {
  uint64_t key = key_of(seed, "options");
  EngineOptions out{
      .model = {.path = model.path(), .mixed_precision = draw(key, 2) ? "bf16" : "no"},
      .scheduling = {.token_budget = 1 + static_cast<int64_t>(draw(key, 40))},
      .sampler = {.kv_tokens = 512,
                  .max_sequences = 1 + static_cast<int64_t>(draw(key, 6)),
                  .prefill_tokens = 1 + static_cast<int64_t>(draw(key, 12))}};
  if (of.fsdp > 1) out.model.gathered_bytes = static_cast<int64_t>(draw(key, 3)) * 6000;
  return out;
}
EngineOptions for_one(EngineOptions options) {
  options.model.gathered_bytes = 0;
  options.scheduling.token_budget = 4096;
  options.sampler.max_sequences = 64;
  options.sampler.prefill_tokens = 512;
  return options;
}

class GroupsOf : public testing::TestWithParam<std::string> {};

TEST_P(GroupsOf, AnyMeshGiveEveryRankTheBitsOfOneRankOneOperationAtATime) {
  for (uint64_t seed = 0; seed < num_drawn(std::size(kMeshes)); ++seed) {
    const Mesh of = kMeshes[seed % std::size(kMeshes)];
    SCOPED_TRACE(std::to_string(seed) + ": dp " + std::to_string(of.dp) + ", fsdp " +
                 std::to_string(of.fsdp));
    const model::TinyModel model(smallest_config(GetParam(), seed % 2 == 0));
    const ScratchDir parked;
    EngineOptions options = group_options(model, seed, of);
    const EngineOptions one = for_one(options);
    if (seed % 3 == 0) options.parking = {.resident_bytes = 1, .directory = parked.path().string()};
    const Lives lives{key_of(seed, GetParam()), 3, 20};
    const std::vector<ByTenant> got = of_group(options, lives, of),
                                expected = of_one(one, lives, of.size());
    for (size_t r = 0; r < got.size(); ++r) ASSERT_EQ(got[r], expected[r]) << "rank " << r;
  }
}

INSTANTIATE_TEST_SUITE_P(All, GroupsOf,
                         testing::Values("llama", "qwen2", "qwen3", "glm4", "internlm2"),
                         [](const auto& of) { return of.param; });

TEST(Groups, GiveEachOfSixteenTenantsTheBitsThatItHasAlone) {
  for (const Mesh of : {Mesh{3, 1}, Mesh{1, 4}, Mesh{2, 2}, Mesh{8, 1}}) {
    SCOPED_TRACE(std::to_string(of.dp) + " by " + std::to_string(of.fsdp));
    const auto seed = static_cast<uint64_t>(10 * of.dp + of.fsdp);
    const model::TinyModel model(smallest_config());
    const EngineOptions options = group_options(model, seed, of);
    const Lives lives{seed, 16, 96};
    const std::vector<ByTenant> got = of_group(options, lives, of);
    for (size_t t = 0; t < lives.tenants; ++t) {
      const std::vector<ByTenant> alone = of_one(for_one(options), lives, of.size(), t);
      for (size_t r = 0; r < got.size(); ++r)
        ASSERT_EQ(got[r].at(t), alone[r].at(t)) << "tenant " << t << " on rank " << r;
    }
  }
}

TEST(Groups, SampleEachRequestOnOneRank) {
  const model::TinyModel model(smallest_config());
  const EngineOptions options{.model = {.path = model.path()}, .sampler = {.kv_tokens = 2048}};
  Sample op{.tenant = "a", .params = {{.max_tokens = 6, .seed = 7, .num_samples = 2}}};
  for (uint64_t i = 0; i < 8; ++i) op.prompts.push_back(drawn(i, 9, 41).input_ids);
  const auto sampled = [&](Engine& engine, const Part& part) {
    engine.run<Done>(
        Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": ["q_proj"]})"});
    return std::get<SampleResult>(engine.submit(sliced(op, part)).get());
  };
  Engine one(options);
  const SampleResult alone = sampled(one, {0, 8});
  std::array<int64_t, 4> computed{};
  on_ranks({4}, options, [&](Engine& engine, int rank, const auto&) {
    const auto r = static_cast<size_t>(rank);
    const Part part{2 * r, 2 * r + 2};
    EXPECT_EQ(OutcomeText().of(sampled(engine, part)), OutcomeText().of(part_of(alone, part)));
    computed[r] = engine.sampling().num_computed_tokens;
  });
  const int64_t all = one.sampling().num_computed_tokens;
  EXPECT_EQ(computed[0] + computed[1] + computed[2] + computed[3], all);
  for (const int64_t tokens : computed) EXPECT_LT(3 * tokens, all);
}

// Runs `script` of every rank in a thread of its own, with a tenant.
void on_ranks_of_a(int n, const EngineOptions& options, const CountedScript& script) {
  on_counted_ranks({n}, options, [&](Engine& engine, int r, const Channels& sent) {
    engine.run<Done>(
        Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": ["q_proj"]})"});
    script(engine, r, sent);
  });
}

// Once at the door, by each rank its own part. A command names it, news tell its end, and every
// rank says how it ended, in a frame each, whatever its size.
TEST(Groups, AreSentAnOperationOnceAndThenItsNumber) {
  const model::TinyModel model(smallest_config());
  for (const int n : {2, 4}) {
    on_ranks_of_a(n, {.model = {.path = model.path()}},
                  [&](Engine& engine, int r, const Channels& sent) {
                    for (const size_t length : {2, 30}) {
                      ForwardBackward op{.tenant = "a"};
                      for (uint64_t i = 0; i < 8; ++i) op.sequences.push_back(drawn(i, length, 41));
                      const Operation mine = sliced(op, drawn_part(8, r, n, length));
                      const mesh::SentBytes door = sent.door, control = sent.control;
                      engine.run<ForwardResult>(mine);
                      EXPECT_EQ(sent.door.all_to_all - door.all_to_all,
                                (n - 1) * framed(std::ssize(to_bytes(mine))));
                      EXPECT_EQ(sent.control.broadcast - control.broadcast,
                                r == 0 ? (n - 1) * 2 * kFrame : 0);
                      EXPECT_EQ(sent.control.all_to_all - control.all_to_all, (n - 1) * kFrame);
                    }
                  });
  }
}

// The Sample once, a command and an answer for its start and for each step, news at its end; of the
// steps the tokens alone, by the rank that has chosen them: 28 bytes and 56 for each, in a frame.
TEST(Groups, AreSentTheTokensOfASampleAtEachOfItsSteps) {
  const model::TinyModel model(smallest_config());
  const EngineOptions options{.model = {.path = model.path()}, .sampler = {.kv_tokens = 2048}};
  constexpr int64_t kTokens = 5, kPrompts = 8;
  for (const int n : {2, 4}) {
    on_ranks_of_a(n, options, [&](Engine& engine, int r, const Channels& sent) {
      for (const int64_t num_samples : {1, 3}) {
        Sample op{.tenant = "a",
                  .params = {{.max_tokens = kTokens,
                              .temperature = 0.0,
                              .num_samples = num_samples,
                              .ignore_eos = true}}};
        for (uint64_t i = 0; i < kPrompts; ++i) op.prompts.push_back(drawn(i, 9, 41).input_ids);
        const Operation mine = sliced(op, drawn_part(kPrompts, r, n, 7));
        const mesh::SentBytes door = sent.door, control = sent.control, data = sent.data;
        engine.run<SampleResult>(mine);
        EXPECT_EQ(sent.door.all_to_all - door.all_to_all,
                  (n - 1) * framed(std::ssize(to_bytes(mine))));
        const int64_t num_calls = 1 + kTokens;
        EXPECT_EQ(sent.control.broadcast - control.broadcast,
                  r == 0 ? (n - 1) * (num_calls + 1) * kFrame : 0);
        EXPECT_EQ(sent.control.all_to_all - control.all_to_all, (n - 1) * num_calls * kFrame);
        const int64_t own = kPrompts * num_samples / n;
        EXPECT_EQ(sent.data.all_to_all - data.all_to_all,
                  (n - 1) * (kFrame + kTokens * framed(28 + 56 * own)))
            << n << " ranks, " << num_samples << " samples";
      }
    });
  }
}

// A channel of the leader that asks for an interrupt, as a group of torch does; its door, behind
// which there is one.
class Asking : public mesh::Channel {
 public:
  Asking(std::unique_ptr<mesh::Channel> channel, bool is_door)
      : Channel(channel->rank(), channel->size()),
        channel_(std::move(channel)),
        is_door_(is_door) {}
  std::vector<std::string> all_gather(const std::string& bytes) override {
    Interrupt::check();
    std::vector<std::string> out = channel_->all_gather(bytes);
    if (is_door_) std::this_thread::sleep_for(2 * Interrupt::kSlice);
    return out;
  }
  std::string broadcast(std::string bytes, int root) override {
    Interrupt::check();
    return channel_->broadcast(std::move(bytes), root);
  }
  void close(const std::string& why) noexcept override { channel_->close(why); }

 private:
  const std::unique_ptr<mesh::Channel> channel_;
  const bool is_door_;
};

// Errors of refused operations, and of a Load, whose files are read there.
TEST(Groups, EndAnOperationWhoseLeaderIsInterruptedBehindTheDoorAsIfItWereNot) {
  const model::TinyModel model(smallest_config());
  const ScratchDir scratch;
  const std::string saved = (scratch.path() / "saved").string();
  std::vector<Group> of_ranks = groups({2}, 20);
  of_ranks[0].door = std::make_unique<Asking>(std::move(of_ranks[0].door), true);
  of_ranks[0].control = std::make_unique<Asking>(std::move(of_ranks[0].control), false);
  const auto script = [&](Group group) {
    const bool is_leader = group.rank() == 0;
    Engine engine({.model = {.path = model.path()}}, in_letters, std::move(group));
    const auto told = [&](const Operation& operation) -> std::string {
      try {
        std::optional<Interrupt> interrupt;
        if (is_leader) interrupt.emplace([] { return true; });
        engine.submit(operation).get();
        return "no error";
      } catch (const Interrupted&) {
        return "interrupted";
      } catch (const Error& error) {
        return error.what();
      }
    };
    engine.run<Done>(
        Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": ["q_proj"]})"});
    engine.submit(Save{.tenant = "a", .directory = saved}).get();
    EXPECT_EQ(told(Load{.tenant = "a", .directory = saved}), "no error");
    EXPECT_EQ(told(ForwardBackward{.tenant = "a"}),
              "engine: the batch is empty; give at least one sequence");
    EXPECT_EQ(told(Step{.tenant = "a"}).find("interrupted"), std::string::npos);
  };
  std::thread follower([&] { script(std::move(of_ranks[1])); });
  script(std::move(of_ranks[0]));
  follower.join();
}

// Losses that need all rows of the operation, over several batches, and an adapter on the head,
// whose gradient is added while the loss is computed.
std::string life(Engine& engine, const std::function<Operation(Operation)>& mine) {
  std::string out;
  const auto run = [&](Operation operation) {
    out += OutcomeText().of(engine.submit(mine(std::move(operation))).get()) + '\n';
  };
  run(Create{
      .tenant = "a",
      .lora_json = R"({"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "lm_head"]})"});
  for (uint64_t step = 1; step <= 3; ++step) {
    for (const char* loss : {"DPOLoss", "GSPOLoss", "CrossEntropyLoss"}) {
      ForwardBackward op{.tenant = "a", .loss = loss};
      for (uint64_t i = 0; i < 8; ++i) {
        Example s = drawn(10 * step + i, 4 + (7 * i) % 9, 41);
        if (op.loss == "DPOLoss") s.extras["ref_sums"] = {-20.0f};
        if (op.loss == "GSPOLoss") s.extras["advantages"].assign(s.input_ids.size(), 0.7f);
        op.sequences.push_back(std::move(s));
      }
      run(op);
    }
    run(Step{.tenant = "a", .options = R"({"lr": 0.02})", .max_grad_norm = 0.5});
  }
  run(Inspect{"a"});
  return out;
}

TEST(Groups, LearnByTheHeadAndByLossesOfTheWholeOperationAsOneRank) {
  const model::TinyModel model(smallest_config());
  const EngineOptions options{.model = {.path = model.path()}, .scheduling = {.token_budget = 17}};
  Engine one(options);
  const auto without_rows = [](std::string text) {  // without a rank's own sequences
    std::string out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (line.find("forward") != std::string::npos || line.find("st") == 0)
        out += line.substr(0, 41) + '\n';
    return out;
  };
  const std::string alone = without_rows(life(one, [](Operation op) { return op; }));
  for (const Mesh of : {Mesh{3, 1}, Mesh{1, 3}}) {
    on_ranks(of, options, [&](Engine& engine, int rank, const auto&) {
      const std::string mine = life(engine, [&](Operation op) {
        const auto part = std::array{Part{0, 1}, Part{1, 6}, Part{6, 8}}[static_cast<size_t>(rank)];
        return num_items(op) > 0 ? sliced(std::move(op), part) : op;
      });
      EXPECT_EQ(without_rows(mine), alone) << of.dp << " by " << of.fsdp;
    });
  }
}

}  // namespace
}  // namespace twinkle::engine
