// Adapters whose experts share factors, and the form with factors of each expert that a Save gives
// on request. Schedules of many tenants with such adapters: family_schedules_test.cpp.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "twinkle/engine/group/groups_for_test.h"

namespace twinkle::engine {
namespace {

constexpr const char* kShares =
    R"({"r": 3, "target_modules": "all-linear", "share_expert_factors": true})";

JsonObject shared_config() {
  JsonObject c = smallest_config("qwen3_moe");
  c["num_experts"] = 4;
  c["num_experts_per_tok"] = 2;
  c["moe_intermediate_size"] = 8;
  return c;
}

class SharedFactors : public testing::Test {
 protected:
  SharedFactors() : engine_({.model = {.path = model_.path(), .mixed_precision = "no"}}) {}

  static ForwardBackward some_work(const std::string& tenant, uint64_t seed) {
    return {.tenant = tenant, .sequences = {drawn(seed, 9, 41), drawn(seed + 1, 14, 41)}};
  }
  void train(Engine& engine, const std::string& tenant, uint64_t seed) {
    engine.run<ForwardResult>(some_work(tenant, seed));
    engine.run<StepResult>(Step{.tenant = tenant, .options = R"({"lr": 0.05})"});
  }
  std::map<std::string, at::Tensor> gradients(const std::string& tenant) {
    std::map<std::string, at::Tensor> out;
    for (const NamedTensor& t : engine_.run<InspectResult>(Inspect{tenant, true}).tensors) {
      if (!t.name.starts_with("grad/")) continue;
      out[t.name] = at::tensor(t.values).view(t.shape);
    }
    return out;
  }
  std::string folder(const char* name) const { return (scratch_ / name).string(); }

  const model::TinyModel model_{shared_config()};
  const ScratchDir scratch_;
  Engine engine_;
};

// The name of the stack that an expert's factor belongs to, as the first expert's.
std::string of_first(std::string name) {
  const size_t at = name.find(".experts.") + 9;
  return name.replace(at, name.find('.', at) - at, "0");
}

TEST_F(SharedFactors, LearnByTheSumOfTheGradientsOfFactorsOfTheirOwn) {
  engine_.run<Done>(Create{.tenant = "shares", .lora_json = kShares, .seed = 1});
  train(engine_, "shares", 1);
  engine_.run<SaveResult>(
      Save{.tenant = "shares", .directory = folder("each"), .expert_format = kPerExpert});
  engine_.run<Done>(Create{.tenant = "own", .directory = folder("each")});
  const auto mine = engine_.run<ForwardResult>(some_work("shares", 5)),
             theirs = engine_.run<ForwardResult>(some_work("own", 5));
  EXPECT_EQ(mine.logps, theirs.logps);
  const auto shared = gradients("shares"), own = gradients("own");
  std::map<std::string, at::Tensor> sums;
  int joined = 0;
  for (const auto& [name, gradient] : own) {
    const bool is_shared =
        name.find(".experts.") != name.npos &&
        name.ends_with(name.find("down_proj") == name.npos ? "lora_A.weight" : "lora_B.weight");
    at::Tensor& sum = sums[is_shared ? of_first(name) : name];
    sum = sum.defined() ? sum + gradient : gradient;
    joined += is_shared ? 1 : 0;
  }
  EXPECT_EQ(joined, 3 * 4);
  ASSERT_EQ(shared.size(), sums.size());
  for (const auto& [name, gradient] : shared) {
    ASSERT_TRUE(sums.contains(name)) << name;
    EXPECT_TRUE(at::equal(gradient, sums[name])) << name;
    EXPECT_GT(gradient.abs().sum().item<float>(), 0) << name;
  }
}

TEST_F(SharedFactors, GoOnFromASaveWithTheOptimizerAndItsGradients) {
  engine_.run<Done>(Create{.tenant = "me", .lora_json = kShares, .seed = 1});
  train(engine_, "me", 1);
  engine_.run<ForwardResult>(some_work("me", 2));
  engine_.run<SaveResult>(Save{.tenant = "me", .directory = folder("saved"), .optimizer = true});
  Engine other({.model = {.path = model_.path(), .mixed_precision = "no"}});
  other.run<Done>(Create{.tenant = "me", .directory = folder("saved")});
  other.run<LoadResult>(Load{.tenant = "me", .directory = folder("saved"), .optimizer = true});
  EXPECT_EQ(state_of(other, "me"), state_of(engine_, "me"));
  for (Engine* engine : {&engine_, &other}) train(*engine, "me", 3);
  EXPECT_EQ(state_of(other, "me"), state_of(engine_, "me"));
}

// A folder that a save is still to write: nobody knows yet that its experts share factors.
TEST_F(SharedFactors, LearnInAPassEachWhereTheirFolderIsYetToBeWritten) {
  const auto life = [&](const std::string& tenant, const char* to) {
    return std::vector<Operation>{Save{.tenant = "from", .directory = folder(to)},
                                  Create{.tenant = tenant, .directory = folder(to), .seed = 7},
                                  some_work(tenant, 3), some_work(tenant, 5), some_work(tenant, 9)};
  };
  engine_.run<Done>(Create{.tenant = "from", .lora_json = kShares, .seed = 1});
  train(engine_, "from", 1);
  for (Operation& op : life("one", "a")) engine_.submit(std::move(op)).get();
  for (Future& done : engine_.submit(life("other", "b"))) done.get();
  EXPECT_EQ(state_of(engine_, "other"), state_of(engine_, "one"));
}

TEST_F(SharedFactors, AreCountedAsTheyAreOnceTheirGradientsAreJoined) {
  Engine parks({.model = {.path = model_.path(), .mixed_precision = "no"},
                .parking = {.directory = folder("park")}});
  parks.run<Done>(Create{.tenant = "me", .lora_json = kShares});
  parks.run<ForwardResult>(some_work("me", 1));
  const int64_t counted = parks.parking().resident_bytes;
  parks.run<InspectResult>(Inspect{"me"});  // counts it anew
  EXPECT_EQ(counted, parks.parking().resident_bytes);
}

// Ranks would have to agree on an owner of what experts share.
TEST_F(SharedFactors, SampleAndScoreOnSeveralRanksAndLearnOnOne) {
  engine_.run<Done>(Create{.tenant = "me", .lora_json = kShares, .seed = 1});
  train(engine_, "me", 1);
  engine_.run<SaveResult>(Save{.tenant = "me", .directory = folder("saved")});
  const Sample sample{"me", {{1, 2, 3}, {5, 7}}, {{.max_tokens = 5, .seed = 3}}};
  const auto want = engine_.run<SampleResult>(sample);
  const ForwardBackward work = some_work("me", 5);
  const auto scores =
      engine_.run<ForwardResult>(Forward{.tenant = "me", .sequences = work.sequences});
  for (const Mesh& mesh : {Mesh{.dp = 2}, Mesh{.fsdp = 2}}) {
    on_ranks(
        mesh, {.model = {.path = model_.path(), .mixed_precision = "no"}},
        [&](Engine& engine, int rank, const auto&) {
          const size_t r = static_cast<size_t>(rank);
          engine.run<Done>(Create{.tenant = "me", .directory = folder("saved")});
          Sample mine = sample;
          mine.prompts = slice(mine.prompts, {r, r + 1});
          EXPECT_EQ(engine.run<SampleResult>(mine).completions[0], want.completions[r]);
          Forward scored{.tenant = "me", .sequences = slice(work.sequences, {r, r + 1})};
          EXPECT_EQ(engine.run<ForwardResult>(scored).logps[0], scores.logps[r]);
          ForwardBackward learns = work;
          learns.sequences = scored.sequences;
          const std::string why = "share_expert_factors), which are trained by one data rank only";
          expect_error(why, [&] { engine.run<ForwardResult>(learns); });
          expect_error(why,
                       [&] { engine.run<StepResult>(Step{.tenant = "me", .none_is_zero = true}); });
        });
  }
}

TEST_F(SharedFactors, AFormThatASaveCannotGiveIsRefused) {
  engine_.run<Done>(Create{.tenant = "me", .lora_json = kShares});
  Save save{.tenant = "me", .directory = folder("x"), .expert_format = "stacked"};
  const auto refused = [&] { return error_of([&] { engine_.run<SaveResult>(save); }); };
  EXPECT_EQ(refused(),
            "engine: save: expert_format is 'stacked'; known: per_expert, and empty, which is the "
            "adapter's own");
  save.expert_format = kPerExpert;
  save.optimizer = true;
  EXPECT_EQ(
      refused(),
      "engine: save: expert_format is 'per_expert' and optimizer true; the optimizer's state "
      "is of the adapter as it is: save it without expert_format, and the other form besides");
  engine_.run<Done>(Delete{"me"});
  engine_.run<Done>(Create{.tenant = "me"});
  save.optimizer = false;
  EXPECT_EQ(refused(),
            "engine: save: expert_format is 'per_expert', but tenant 'me' is no adapter; leave it "
            "out: a model's experts are saved as its checkpoint has them");
}

}  // namespace
}  // namespace twinkle::engine
