// Engines of one group, whose ranks are threads, against one engine alone: the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <sstream>
#include <thread>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/exactness/schedules_for_test.h"
#include "twinkle/engine/group/joined.h"
#include "twinkle/mesh/counting_comm.h"
#include "twinkle/mesh/thread_comm.h"

namespace twinkle::engine {
namespace {

std::vector<Group> groups(int size, double timeout_s = 60) {
  auto door = mesh::thread_comms(size, timeout_s), control = mesh::thread_comms(size, timeout_s),
       data = mesh::thread_comms(size, timeout_s);
  std::vector<Group> out(static_cast<size_t>(size));
  for (size_t r = 0; r < out.size(); ++r)
    out[r] = {std::move(door[r]), std::move(control[r]), std::move(data[r]), timeout_s};
  return out;
}

// Runs `script` of every rank in a thread of its own, with its engine.
void on_ranks(int size, const EngineOptions& options,
              const std::function<void(Engine&, int rank)>& script) {
  std::vector<Group> of_ranks = groups(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      Engine engine(options, in_letters, std::move(of_ranks[static_cast<size_t>(r)]));
      script(engine, r);
    });
  }
  for (std::thread& t : threads) t.join();
}

size_t num_items(const Operation& operation) {
  if (const auto* op = std::get_if<Forward>(&operation)) return op->sequences.size();
  if (const auto* op = std::get_if<ForwardBackward>(&operation)) return op->sequences.size();
  if (const auto* op = std::get_if<Sample>(&operation)) return op->prompts.size();
  return 0;
}

// The part of an operation that a rank submits: ranks' follow one another, some have nothing.
Part drawn_part(size_t count, int rank, int size, uint64_t key) {
  std::vector<size_t> ends;
  for (int r = 1; r < size; ++r) ends.push_back(draw(key, count + 1));
  std::ranges::sort(ends);
  ends.insert(ends.begin(), 0);
  ends.push_back(count);
  return {ends[static_cast<size_t>(rank)], ends[static_cast<size_t>(rank) + 1]};
}

template <class T>
std::vector<T> slice(const std::vector<T>& all, const Part& part) {
  return {all.begin() + static_cast<ptrdiff_t>(part.first),
          all.begin() + static_cast<ptrdiff_t>(part.last)};
}

Operation sliced(Operation operation, const Part& part) {
  if (auto* op = std::get_if<Forward>(&operation)) op->sequences = slice(op->sequences, part);
  if (auto* op = std::get_if<ForwardBackward>(&operation))
    op->sequences = slice(op->sequences, part);
  if (auto* op = std::get_if<Sample>(&operation)) op->prompts = slice(op->prompts, part);
  return operation;
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
std::vector<Texts> of_group(const EngineOptions& options, uint64_t seed, int size) {
  const ScratchDir scratch;
  const std::string folder = scratch.path().string();
  const std::vector<Owned> schedule = some_schedule(seed, folder, 3, 24);
  std::vector<Texts> out(static_cast<size_t>(size));
  on_ranks(size, options, [&](Engine& engine, int rank) {
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
  });
  return out;
}

TEST(Groups, OfAnySizeGiveEveryRankTheBitsOfOneRank) {
  const model::TinyModel model(smallest_config());
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    const int size = 2 + static_cast<int>(seed % 3);
    EngineOptions options{
        .model = {.path = model.path(), .mixed_precision = seed % 2 ? "bf16" : "no"},
        .scheduling = {.token_budget = 1 + static_cast<int64_t>(key_of(seed, "budget") % 40)},
        .sampler = {.kv_tokens = 512, .max_sequences = 4, .prefill_tokens = 12}};
    const std::vector<Texts> got = of_group(options, seed, size),
                             expected = of_one(options, seed, size);
    for (size_t r = 0; r < got.size(); ++r) EXPECT_EQ(got[r], expected[r]) << "rank " << r;
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
  on_ranks(3, options, [&](Engine& engine, int rank) {
    const std::string mine = life(engine, [&](Operation op) {
      const auto part = std::array{Part{0, 1}, Part{1, 6}, Part{6, 8}}[static_cast<size_t>(rank)];
      return num_items(op) > 0 ? sliced(std::move(op), part) : op;
    });
    EXPECT_EQ(without_rows(mine), alone);
  });
}

// A Comm with its counts.
struct Counted : mesh::CountingComm {
  explicit Counted(std::unique_ptr<mesh::Comm> comm) : CountingComm(*comm), kept(std::move(comm)) {}
  std::unique_ptr<mesh::Comm> kept;
};

TEST(Groups, SendTheBytesOfTheFormula) {
  const model::TinyModel model(smallest_config());
  constexpr int kRanks = 4, kSequences = 8, kTokens = 5;
  std::vector<Group> of_ranks = groups(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      Group group = std::move(of_ranks[static_cast<size_t>(r)]);
      auto* comm = dynamic_cast<mesh::Comm*>(group.data.release());
      auto counted = std::make_unique<Counted>(std::unique_ptr<mesh::Comm>(comm));
      const mesh::SentBytes& sent = counted->sent();
      group.data = std::move(counted);
      Engine engine({.model = {.path = model.path()}}, {}, std::move(group));
      engine.run<Done>(
          Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": ["q_proj"]})"});
      const int64_t parameters = engine.run<InspectResult>(Inspect{"a"}).num_parameters;
      const int64_t before = sent.all_to_all;
      ForwardBackward op{.tenant = "a"};
      for (int i = 0; i < kSequences / kRanks; ++i)
        op.sequences.push_back(drawn(static_cast<uint64_t>(10 * r + i), kTokens, 41));
      engine.run<ForwardResult>(op);
      // To each other rank: this rank's rows, one number of the operation, its sequences'
      // gradients.
      const int64_t own = kSequences / kRanks;
      EXPECT_EQ(sent.all_to_all - before,
                4 * (kRanks - 1) * (own * kTokens + 1 + own * parameters));
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace
}  // namespace twinkle::engine
