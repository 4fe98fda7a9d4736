// Gradients that leave the finite numbers in a pass of several ranks, each on the rank that owns
// them: the operations that did it fail on every rank, and no other loses a bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/group/groups_for_test.h"

namespace twinkle::engine {
namespace {

constexpr float kBeyond = 3e38f;  // no float32 holds its products
constexpr size_t kNumSequences = 4;

// One tensor, so that one rank has the overflow.
constexpr const char* kOnQuery = R"({"r": 2, "target_modules": ["q_proj"]})";

ForwardBackward training(const std::string& tenant, uint64_t seed, float grad = 0.1f) {
  ForwardBackward out{.tenant = tenant, .loss = "LinearLoss"};
  for (uint64_t i = 0; i < kNumSequences; ++i) {
    Example s = drawn(10 * seed + i, 3 + i, 41);
    s.extras["grad"].assign(s.input_ids.size(), grad);
    out.sequences.push_back(std::move(s));
  }
  return out;
}

std::string outcome_text(const std::function<Result()>& result) {
  try {
    return OutcomeText().of(result());
  } catch (const Error& e) {
    return e.what();
  }
}

void create_all(Engine& engine, const std::vector<std::string>& tenants) {
  for (const std::string& name : tenants)
    engine.run<Done>(Create{.tenant = name, .lora_json = kOnQuery});
}

// Derivatives that one operation of a tenant can have, and not two.
float brink(const EngineOptions& options) {
  Engine engine(options);
  create_all(engine, {"b"});
  float grad = 1e30f;
  while (error_of([&] { engine.run<ForwardResult>(training("b", 5, grad)); }) == "no error") {
    engine.run<Done>(ZeroGrad{"b"});
    grad *= 1.5f;
  }
  return grad / 1.5f;
}

// The operations in one batch.
std::vector<Operation> all_together(float on_the_brink) {
  return {training("a", 1),
          training("b", 2),
          training("c", 3),
          training("b", 5, on_the_brink),
          training("a", 4, kBeyond),
          training("c", 6),
          training("b", 5, on_the_brink),
          training("a", 7),
          training("b", 8)};
}

std::vector<Operation> afterwards() {
  std::vector<Operation> out;
  for (const char* name : {"a", "b", "c"}) {
    out.emplace_back(Inspect{name, true});
    out.emplace_back(Step{.tenant = name, .max_grad_norm = 0.5});
    out.emplace_back(Inspect{name, true});
  }
  return out;
}

Part rows_of_rank(int rank, int size) {
  const auto at = [&](int r) {
    return kNumSequences * static_cast<size_t>(r) / static_cast<size_t>(size);
  };
  return {at(rank), at(rank + 1)};
}

std::vector<std::string> one_after_another(const EngineOptions& options, float on_the_brink,
                                           const Part& part) {
  Engine engine(options);
  create_all(engine, {"a", "b", "c"});
  std::vector<std::string> out;
  for (const auto& operations : {all_together(on_the_brink), afterwards()}) {
    for (const Operation& operation : operations)
      out.push_back(outcome_text([&] { return part_of(engine.submit(operation).get(), part); }));
  }
  return out;
}

// Keeps the engine's thread of the rank that samples, and so all others', until all is in the
// queue.
struct Hold {
  std::atomic<bool> is_first = true;
  std::promise<void> held, all_there;
  std::shared_future<void> has_held = held.get_future().share(),
                           go_on = all_there.get_future().share();

  Decoders decoders() {
    return [this](const std::string&) -> Decode {
      return [this](std::span<const int32_t> ids) {
        if (is_first.exchange(false)) held.set_value();
        go_on.wait();
        return letters(ids);
      };
    };
  }
};

std::vector<std::string> overflow_at_once(Engine& engine, int rank, float on_the_brink,
                                          const Part& part, Hold& hold) {
  create_all(engine, {"a", "b", "c", "held"});
  Sample sample{.tenant = "held", .params = {{.max_tokens = 2, .seed = 1}}};
  sample.params[0].stop = {"no such text"};
  if (rank == 0) sample.prompts = {{5, 6}};
  Future sampled = engine.submit(sample);
  hold.has_held.wait();
  std::vector<Future> futures;
  for (const Operation& operation : all_together(on_the_brink))
    futures.push_back(engine.submit(sliced(operation, part)));
  if (rank == 0) hold.all_there.set_value();
  sampled.get();
  std::vector<std::string> out;
  for (Future& future : futures) out.push_back(outcome_text([&] { return future.get(); }));
  for (const Operation& operation : afterwards())
    out.push_back(outcome_text([&] { return engine.submit(operation).get(); }));
  return out;
}

TEST(Overflows, OfTwoTenantsInOnePassFailByThemselvesOnEveryRank) {
  const model::TinyModel model(smallest_config());
  for (const Mesh of : {Mesh{2, 1}, Mesh{3, 1}, Mesh{4, 1}, Mesh{1, 2}, Mesh{2, 2}}) {
    for (const char* precision : {"bf16", "no"}) {
      SCOPED_TRACE(std::to_string(of.dp) + " by " + std::to_string(of.fsdp) + ", " + precision);
      const EngineOptions options{.model = {.path = model.path(), .mixed_precision = precision}};
      const float on_the_brink = brink(options);
      Hold hold;
      on_ranks(
          of, options,
          [&](Engine& engine, int rank, const auto&) {
            const Part part = rows_of_rank(rank, of.size());
            const std::vector<std::string> got =
                overflow_at_once(engine, rank, on_the_brink, part, hold);
            EXPECT_EQ(got, one_after_another(options, on_the_brink, part)) << "rank " << rank;
            for (size_t i = 0; i < 9; ++i)
              EXPECT_EQ(got[i].find("are not finite") != std::string::npos, i == 4 || i == 6) << i;
            if (rank > 0) return;
            const auto batches = engine.stats().last_batches;
            EXPECT_TRUE(std::ranges::any_of(batches, [](const BatchStats& batch) {
              return batch.num_tenants == 3 && batch.num_tokens == 9 * 18;
            })) << "they were not in one batch";
          },
          hold.decoders());
    }
  }
}

}  // namespace
}  // namespace twinkle::engine
