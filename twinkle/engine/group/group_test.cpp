// Engines of one group, whose ranks are threads, against one engine alone: the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <sstream>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/exactness/schedules_for_test.h"
#include "twinkle/engine/group/groups_for_test.h"

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

std::string text_of(const std::function<Result()>& result) {
  try {
    return OutcomeText().of(result());
  } catch (const Error& e) {
    return e.what();
  }
}

using Texts = std::vector<std::string>;

// Every operation when the one before it has ended; of each rank's part.
std::vector<Texts> of_one(const EngineOptions& options, uint64_t seed, int size) {
  const ScratchDir scratch;
  const std::string folder = scratch.path().string();
  Engine engine(options, in_letters);
  std::vector<Texts> out(static_cast<size_t>(size));
  size_t i = 0;
  for (const Owned& item : some_schedule(seed, folder, 3, 24)) {
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
      const Part part = drawn_part(num_items(item.operation), r, size, key_of(seed, i));
      out[static_cast<size_t>(r)].push_back(
          without(text_of([&] { return part_of(whole.get(), part); }), folder));
    }
    ++i;
  }
  return out;
}

// All at once.
std::vector<Texts> of_group(const EngineOptions& options, uint64_t seed, int size, int fsdp = 1) {
  const ScratchDir scratch;
  const std::string folder = scratch.path().string();
  const std::vector<Owned> schedule = some_schedule(seed, folder, 3, 24);
  std::vector<Texts> out(static_cast<size_t>(size));
  const auto script = [&](Engine& engine, int rank, const auto&) {
    std::vector<std::function<Result()>> results;
    for (size_t i = 0; i < schedule.size(); ++i) {
      const Operation& whole = schedule[i].operation;
      const Part part = drawn_part(num_items(whole), rank, size, key_of(seed, i));
      try {
        results.push_back([future = std::make_shared<Future>(engine.submit(sliced(whole, part)))] {
          return future->get();
        });
      } catch (const Error&) {
        results.push_back(
            [error = std::current_exception()]() -> Result { std::rethrow_exception(error); });
      }
    }
    for (const auto& result : results)
      out[static_cast<size_t>(rank)].push_back(without(text_of(result), folder));
  };
  on_ranks(size, options, script, fsdp);
  return out;
}

TEST(Groups, OfAnySizeGiveEveryRankTheBitsOfOneRank) {
  const model::TinyModel model(smallest_config());
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    const int size = std::array{2, 3, 4, 8}[seed % 4];
    const ScratchDir parked;
    EngineOptions options{
        .model = {.path = model.path(), .mixed_precision = seed % 2 ? "bf16" : "no"},
        .scheduling = {.token_budget = 1 + static_cast<int64_t>(key_of(seed, "budget") % 40)},
        .sampler = {.kv_tokens = 512, .max_sequences = 4, .prefill_tokens = 12}};
    if (seed % 3 == 0) options.parking = {.resident_bytes = 1, .directory = parked.path().string()};
    const std::vector<Texts> got = of_group(options, seed, size),
                             expected = of_one(options, seed, size);
    for (size_t r = 0; r < got.size(); ++r) EXPECT_EQ(got[r], expected[r]) << "rank " << r;
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
  on_ranks(4, options, [&](Engine& engine, int rank, const auto&) {
    const auto r = static_cast<size_t>(rank);
    const Part part{2 * r, 2 * r + 2};
    EXPECT_EQ(OutcomeText().of(sampled(engine, part)), OutcomeText().of(part_of(alone, part)));
    computed[r] = engine.sampling().num_computed_tokens;
  });
  const int64_t all = one.sampling().num_computed_tokens;
  EXPECT_EQ(computed[0] + computed[1] + computed[2] + computed[3], all);
  for (const int64_t tokens : computed) EXPECT_LT(3 * tokens, all);
}

TEST(Groups, ThatShareTheBaseGiveEveryRankTheBitsOfOneRank) {
  for (uint64_t seed = 1; seed <= 18; ++seed) {
    SCOPED_TRACE(seed);
    JsonObject config = smallest_config();
    config["tie_word_embeddings"] = seed % 2 == 0;
    const model::TinyModel model(config);
    const auto [dp, fsdp] =
        std::array{std::pair{1, 2}, std::pair{1, 3}, std::pair{1, 4}, std::pair{2, 2}}[seed % 4];
    EngineOptions options{
        .model = {.path = model.path(), .mixed_precision = seed % 3 ? "bf16" : "no"},
        .scheduling = {.token_budget = 1 + static_cast<int64_t>(key_of(seed, "budget") % 40)},
        .sampler = {.kv_tokens = 512, .max_sequences = 4, .prefill_tokens = 12}};
    const std::vector<Texts> expected = of_one(options, seed, dp * fsdp);
    options.model.gathered_bytes = static_cast<int64_t>(key_of(seed, "gathered") % 3) * 6000;
    const std::vector<Texts> got = of_group(options, seed, dp * fsdp, fsdp);
    for (size_t r = 0; r < got.size(); ++r) EXPECT_EQ(got[r], expected[r]) << "rank " << r;
  }
}

// Once at the door, by each rank its own part. A command names it, news tell its end, and every
// rank says how it ended, in a frame each, whatever its size.
TEST(Groups, AreSentAnOperationOnceAndThenItsNumber) {
  const model::TinyModel model(smallest_config());
  constexpr int64_t kFrame = 256, kInFrame = 248;
  for (const int n : {2, 4}) {
    std::vector<Group> of_ranks = groups(n);
    std::vector<std::thread> threads;
    for (int r = 0; r < n; ++r) {
      threads.emplace_back([&, r] {
        Group group = std::move(of_ranks[static_cast<size_t>(r)]);
        const mesh::SentBytes &door = count(group.door), &control = count(group.control);
        Engine engine({.model = {.path = model.path()}}, in_letters, std::move(group));
        engine.run<Done>(
            Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": ["q_proj"]})"});
        for (const size_t length : {2, 30}) {
          ForwardBackward op{.tenant = "a"};
          for (uint64_t i = 0; i < 8; ++i) op.sequences.push_back(drawn(i, length, 41));
          const Operation mine = sliced(op, drawn_part(8, r, n, length));
          const int64_t rest = std::max<int64_t>(0, std::ssize(to_bytes(mine)) - kInFrame);
          const mesh::SentBytes door_before = door, before = control;
          engine.run<ForwardResult>(mine);
          EXPECT_EQ(door.all_to_all - door_before.all_to_all, (n - 1) * (kFrame + rest));
          EXPECT_EQ(control.broadcast - before.broadcast, r == 0 ? (n - 1) * 2 * kFrame : 0);
          EXPECT_EQ(control.all_to_all - before.all_to_all, (n - 1) * kFrame);
        }
      });
    }
    for (std::thread& t : threads) t.join();
  }
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
  const auto without_rows = [](std::string text) {  // of a rank's own sequences
    std::string out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      if (line.find("forward") != std::string::npos || line.find("st") == 0)
        out += line.substr(0, 41) + '\n';
    return out;
  };
  const std::string alone = without_rows(life(one, [](Operation op) { return op; }));
  on_ranks(3, options, [&](Engine& engine, int rank, const auto&) {
    const std::string mine = life(engine, [&](Operation op) {
      const auto part = std::array{Part{0, 1}, Part{1, 6}, Part{6, 8}}[static_cast<size_t>(rank)];
      return num_items(op) > 0 ? sliced(std::move(op), part) : op;
    });
    EXPECT_EQ(without_rows(mine), alone);
  });
}

}  // namespace
}  // namespace twinkle::engine
