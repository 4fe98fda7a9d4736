#include "twinkle/engine/engine.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/random.h"
#include "twinkle/model/tiny_model.h"
#include "twinkle/nn/batch_invariance.h"

namespace twinkle::engine {
namespace {

using model::TinyModel;

Example sequence(uint64_t seed, size_t n) {
  Example s;
  for (size_t t = 0; t < n; ++t) {
    s.input_ids.push_back(static_cast<int32_t>(key_of(seed, t) % 131));
    s.labels.push_back(t % 5 == 0 ? -100 : static_cast<int32_t>(key_of(seed, t + 1) % 131));
  }
  return s;
}

// The differences between tenants.
struct Kind {
  std::string name, lora, optimizer, options, loss;
  uint64_t seed;
  std::vector<size_t> lengths;
};

Kind small() {
  return {
      "small",
      R"({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "lora_dropout": 0.1})",
      "AdamW",
      R"({"lr": 0.01, "weight_decay": 0.1})",
      "CrossEntropyLoss",
      11,
      {7, 40, 3}};
}
Kind large() {
  return {"large",
          R"({"r": 16, "lora_alpha": 16, "target_modules": "all-linear", "use_rslora": true})",
          "SGD",
          R"({"lr": 0.05, "momentum": 0.9})",
          "LinearLoss",
          12,
          {19, 1, 25}};
}

ForwardBackward batch_of(const Kind& kind, int round) {
  ForwardBackward op{.tenant = kind.name, .loss = kind.loss};
  for (size_t i = 0; i < kind.lengths.size(); ++i) {
    op.sequences.push_back(sequence(key_of(kind.seed, i * 100 + round), kind.lengths[i]));
    if (kind.loss != "LinearLoss") continue;
    Example& s = op.sequences.back();
    for (size_t t = 0; t < s.input_ids.size(); ++t) {
      s.extras["grad"].push_back(static_cast<float>(0.02 * uniform_at(kind.seed, t) - 0.03));
    }
  }
  return op;
}

// The tenant's numbers after each of three steps of two accumulated batches: losses, checksums,
// norms.
std::vector<double> numbers(const ForwardResult& a, const ForwardResult& b,
                            const InspectResult& before, const StepResult& step,
                            const InspectResult& after) {
  std::vector<double> out{a.loss,
                          b.loss,
                          step.grad_norm,
                          step.num_tokens,
                          static_cast<double>(before.gradients >> 12),
                          static_cast<double>(after.weights >> 12),
                          static_cast<double>(after.optimizer >> 12)};
  for (const auto* r : {&a, &b}) {
    for (const auto& row : r->logps) out.insert(out.end(), row.begin(), row.end());
  }
  return out;
}

std::vector<std::vector<std::vector<double>>> train(const std::string& path,
                                                    const std::string& precision,
                                                    const std::vector<Kind>& kinds,
                                                    int64_t budget) {
  Engine engine({.model = {.path = path, .mixed_precision = precision},
                 .scheduling = {.token_budget = budget}});
  for (const Kind& k : kinds)
    engine.run<Done>(Create{.tenant = k.name, .lora_json = k.lora, .seed = k.seed});
  std::vector<std::vector<std::vector<double>>> out(kinds.size());
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<ForwardResult>> results(kinds.size());
    for (int micro = 0; micro < 2; ++micro) {
      std::vector<Operation> together;
      for (const Kind& k : kinds) together.push_back(batch_of(k, round * 2 + micro));
      auto futures = engine.submit(std::move(together));
      for (size_t i = 0; i < kinds.size(); ++i)
        results[i].push_back(std::get<ForwardResult>(futures[i].get()));
    }
    for (size_t i = 0; i < kinds.size(); ++i) {
      const Kind& k = kinds[i];
      const auto before = engine.run<InspectResult>(Inspect{k.name});
      const auto step = engine.run<StepResult>(Step{
          .tenant = k.name, .optimizer = k.optimizer, .options = k.options, .max_grad_norm = 0.5});
      out[i].push_back(numbers(results[i][0], results[i][1], before, step,
                               engine.run<InspectResult>(Inspect{k.name})));
    }
  }
  return out;
}

class Tenants : public testing::TestWithParam<std::string> {};

TEST_P(Tenants, PackedIntoOneForwardAndBackwardGetTheBitsThatTheyGetAlone) {
  const TinyModel model;
  const auto together = train(model.path(), GetParam(), {small(), large()}, 4096);
  EXPECT_EQ(train(model.path(), GetParam(), {small()}, 4096)[0], together[0]);
  EXPECT_EQ(train(model.path(), GetParam(), {large()}, 4096)[0], together[1]);
}

TEST_P(Tenants, ThatWaitTogetherShareOneForwardAndOneBackward) {
  const TinyModel model;
  Engine engine({.model = {.path = model.path(), .mixed_precision = GetParam()}});
  for (const Kind& k : {small(), large()})
    engine.run<Done>(Create{.tenant = k.name, .lora_json = k.lora, .seed = k.seed});
  for (auto& future :
       engine.submit(std::vector<Operation>{batch_of(small(), 0), batch_of(large(), 0)}))
    future.get();
  EXPECT_EQ(engine.num_passes(), 1);
}

TEST_P(Tenants, GetTheSameBitsWhateverTheBudgetThatSplitsTheirBatches) {
  const TinyModel model;
  const auto whole = train(model.path(), GetParam(), {small(), large()}, 4096);
  EXPECT_EQ(train(model.path(), GetParam(), {large(), small()}, 50)[1], whole[0]);
  EXPECT_EQ(train(model.path(), GetParam(), {small(), large()}, 1)[1], whole[1]);
}

TEST_P(Tenants, AreNotTouchedByANeighbourWhoseNumbersAreNotFinite) {
  const TinyModel model;
  Kind bad = large();
  bad.name = "bad";
  const auto alone = train(model.path(), GetParam(), {small()}, 4096);
  Engine engine({.model = {.path = model.path(), .mixed_precision = GetParam()}});
  for (const Kind& k : {small(), bad})
    engine.run<Done>(Create{.tenant = k.name, .lora_json = k.lora, .seed = k.seed});
  engine.run<ForwardResult>(batch_of(bad, 9));
  const auto before = engine.run<InspectResult>(Inspect{"bad"});
  std::vector<ForwardResult> good;
  for (int micro = 0; micro < 2; ++micro) {
    ForwardBackward poison = batch_of(bad, micro);
    poison.sequences[1].extras["grad"][0] = std::nanf("");
    poison.sequences[1].labels[0] = 5;
    auto futures = engine.submit(std::vector<Operation>{poison, batch_of(small(), micro)});
    EXPECT_NE(error_of([&] { futures[0].get(); }).find("not finite"), std::string::npos);
    good.push_back(std::get<ForwardResult>(futures[1].get()));
  }
  const auto after = engine.run<InspectResult>(Inspect{"bad"});
  EXPECT_EQ(after.gradients, before.gradients);
  EXPECT_EQ(after.num_tokens, before.num_tokens);
  const auto mid = engine.run<InspectResult>(Inspect{"small"});
  const auto step = engine.run<StepResult>(Step{
      .tenant = "small", .optimizer = "AdamW", .options = small().options, .max_grad_norm = 0.5});
  EXPECT_EQ(numbers(good[0], good[1], mid, step, engine.run<InspectResult>(Inspect{"small"})),
            alone[0][0]);
}

INSTANTIATE_TEST_SUITE_P(Precisions, Tenants, testing::Values("bf16", "no"));

TEST(Engine, ARunCutInTwoEqualsOneThatWasNot) {
  for (const bool full : {false, true}) {
    for (const std::string precision : {"bf16", "no"}) {
      const TinyModel model;
      const ScratchDir scratch;
      Kind kind = small();
      if (full) kind.lora = "";
      const auto run_steps = [&](Engine& engine, int from, int to) {
        for (int round = from; round < to; ++round) {
          engine.run<ForwardResult>(batch_of(kind, round));
          if (round % 2 == 0) continue;  // the cut falls between two accumulated batches
          engine.run<StepResult>(Step{.tenant = kind.name, .options = kind.options});
        }
        return engine.run<InspectResult>(Inspect{kind.name});
      };
      const Create create{.tenant = kind.name, .lora_json = kind.lora, .seed = 3};
      Engine whole({.model = {.path = model.path(), .mixed_precision = precision}});
      whole.run<Done>(create);
      const auto want = run_steps(whole, 0, 8);

      const std::string directory = (scratch / "checkpoint").string();
      {
        Engine first({.model = {.path = model.path(), .mixed_precision = precision}});
        first.run<Done>(create);
        run_steps(first, 0, 5);
        EXPECT_EQ(first.run<SaveResult>(Save{kind.name, directory, true, "step five"}).directory,
                  directory);
      }
      Engine second({.model = {.path = model.path(), .mixed_precision = precision}});
      second.run<Done>(create);
      EXPECT_EQ(second.run<LoadResult>(Load{kind.name, directory, true}).extra_json, "step five");
      const auto got = run_steps(second, 5, 8);
      EXPECT_EQ(got.weights, want.weights) << full << precision;
      EXPECT_EQ(got.optimizer, want.optimizer) << full << precision;
      EXPECT_EQ(got.step, 4);
    }
  }
}

// A second reader of the base model would see it change.
TEST(Engine, WhoTrainsAllWeightsIsAlone) {
  const TinyModel model;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  const Create all{.tenant = "all"}, base{.tenant = "base", .frozen = true},
      adapter{.tenant = "a", .lora_json = R"({"r": 4, "target_modules": "all-linear"})"};
  const auto conflict = [&](const Create& create) {
    try {
      engine.run<Done>(create);
    } catch (const Error& e) {
      EXPECT_EQ(e.code, Code::kConflict);
      return std::string(e.what());
    }
    return std::string("no error");
  };
  for (const Create& other : {base, adapter}) {
    engine.run<Done>(other);
    EXPECT_EQ(conflict(all),
              "engine: tenant 'all' is to train all weights of the base model, which 1 others use, "
              "'" +
                  other.tenant + "' among them; delete them first");
    engine.run<Done>(Delete{other.tenant});
    engine.run<Done>(all);
    for (const Create& refused : {base, adapter, Create{.tenant = "second"}}) {
      EXPECT_EQ(conflict(refused),
                "engine: tenant 'all' trains all weights of the base model; delete it first");
    }
    engine.run<Done>(Delete{"all"});
  }
  EXPECT_EQ(conflict(base), "no error");
}

TEST(Engine, FullParameterTrainingLowersTheLossAndExcludesAdapters) {
  const TinyModel model;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "bf16"}});
  engine.run<Done>(Create{.tenant = "full"});
  Kind kind = small();
  kind.name = "full";
  const double first = engine.run<ForwardResult>(batch_of(kind, 0)).loss;
  for (int i = 0; i < 5; ++i) {
    engine.run<StepResult>(Step{.tenant = "full", .options = R"({"lr": 0.01})"});
    engine.run<ForwardResult>(batch_of(kind, 0));
  }
  EXPECT_LT(engine.run<ForwardResult>(batch_of(kind, 0)).loss, 0.8 * first);
  EXPECT_NE(error_of([&] {
              engine.run<Done>(Create{.tenant = "a", .lora_json = "{\"r\": 4}"});
            }).find("delete it first"),
            std::string::npos);
  engine.run<Done>(Delete{"full"});
  engine.run<Done>(Create{.tenant = "base", .frozen = true});
  Engine fresh({.model = {.path = model.path(), .mixed_precision = "bf16"}});
  fresh.run<Done>(Create{.tenant = "base", .frozen = true});
  const Forward score{.tenant = "base", .sequences = {sequence(1, 20)}};
  EXPECT_EQ(engine.run<ForwardResult>(score).logps, fresh.run<ForwardResult>(score).logps);
  engine.run<Done>(
      Create{.tenant = "a", .lora_json = R"({"r": 4, "target_modules": "all-linear"})"});
  EXPECT_NE(error_of([&] { engine.run<Done>(Create{.tenant = "full"}); }).find("delete them first"),
            std::string::npos);
}

TEST(Engine, TwoRunsOfOneDropoutSeedAgreeAndTwoSeedsDiffer) {
  const TinyModel model;
  const auto losses = [&](uint64_t seed) {
    Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
    engine.run<Done>(
        Create{.tenant = "small",
               .lora_json = R"({"r": 4, "lora_dropout": 0.5, "target_modules": "all-linear"})",
               .seed = seed});
    std::vector<double> out;
    for (int i = 0; i < 3; ++i) {
      out.push_back(engine.run<ForwardResult>(batch_of(small(), 0)).loss);
      engine.run<StepResult>(Step{.tenant = "small", .options = R"({"lr": 0.05})"});
    }
    return out;
  };
  EXPECT_EQ(losses(5), losses(5));
  EXPECT_NE(losses(5), losses(6));
}

// One adapter, read from a directory: the seed is dropout's alone.
TEST(Engine, TwoSeedsOfDropoutDropOtherInputsOfOneAdapter) {
  const TinyModel model;
  const ScratchDir scratch;
  const std::string directory = (scratch / "adapter").string();
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  const auto loss = [&](const std::string& name) {
    Kind kind = small();
    kind.name = name;
    return engine.run<ForwardResult>(batch_of(kind, 0)).loss;
  };
  engine.run<Done>(
      Create{.tenant = "first",
             .lora_json = R"({"r": 4, "lora_dropout": 0.5, "target_modules": "all-linear"})"});
  loss("first");
  engine.run<StepResult>(Step{.tenant = "first", .options = R"({"lr": 0.05})"});  // B is not 0
  engine.run<SaveResult>(Save{.tenant = "first", .directory = directory});
  for (const auto& [name, seed] : {std::pair{"a", 5}, {"b", 5}, {"c", 6}})
    engine.run<Done>(
        Create{.tenant = name, .directory = directory, .seed = static_cast<uint64_t>(seed)});
  const double a = loss("a");
  EXPECT_EQ(loss("b"), a);
  EXPECT_NE(loss("c"), a);
}

TEST(Engine, AForwardInTrainingHasTheDropoutOfTheBackwardThatFollows) {
  const TinyModel model;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  const Kind kind = small();  // dropout 0.1
  engine.run<Done>(Create{.tenant = kind.name, .lora_json = kind.lora, .seed = kind.seed});
  for (int step = 0; step < 2; ++step) {
    const ForwardBackward work = batch_of(kind, 0);
    const Forward forward{.tenant = kind.name, .sequences = work.sequences, .train = true};
    const auto before = engine.run<ForwardResult>(forward).logps;
    Forward plain = forward;
    plain.train = false;
    if (step > 0) {  // at first B is zero and dropout changes nothing
      EXPECT_NE(before, engine.run<ForwardResult>(plain).logps);
    }
    EXPECT_EQ(before, engine.run<ForwardResult>(work).logps);
    engine.run<StepResult>(Step{.tenant = kind.name, .options = R"({"lr": 0.05})"});
  }
}

TEST(Engine, SaysInAForkThatItsThreadIsNotThere) {
  const TinyModel model;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  const auto child = [&] {
    const std::string text = error_of([&] { engine.run<Done>(Create{.tenant = "child"}); });
    std::fputs(text.c_str(), stderr);
    std::_Exit(3);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(3), "used in its fork");
}

// Shapes that no other test has: a process tries each shape once.
TEST(Engine, TriesEveryProductAtItsStartUnlessToldNotTo) {
  for (const std::string precision : {"no", "bf16"}) {
    const int64_t inner = precision == "no" ? 71 : 73;
    JsonObject config = model::tiny_config();
    config["intermediate_size"] = inner;
    const TinyModel model(config);
    const auto type = precision == "no" ? at::kFloat : at::kBFloat16;
    const auto tried = [&] {
      int out = 0;
      for (const bool transposed : {false, true}) {
        out += nn::is_tried({type, transposed ? inner : 48, transposed ? 48 : inner, transposed});
        out += nn::is_tried({type, transposed ? 48 : inner, transposed ? inner : 48, transposed});
        out += nn::is_tried({type, transposed ? 131 : 48, transposed ? 48 : 131, transposed});
      }
      return out;
    };
    const int before = tried();  // the head's, perhaps, which all tiny models share
    EngineOptions options{.model = {.path = model.path(), .mixed_precision = precision}};
    options.model.deterministic = false;
    {
      const Engine engine(options);
    }
    EXPECT_EQ(tried(), before);
    {
      const Engine engine({.model = {.path = model.path(), .mixed_precision = precision}});
    }
    EXPECT_EQ(tried(), 6);
  }
}

}  // namespace
}  // namespace twinkle::engine
