#include "twinkle/engine/tenant.h"

#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/engine/operations_for_test.h"
#include "twinkle/engine/shortage_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {
namespace {

constexpr const char* kOfTenant = R"({"r": 4, "target_modules": "all-linear"})";

// Both ways to train.
class TenantTest : public testing::TestWithParam<bool> {
 protected:
  TenantTest() { start(); }

  // From the beginning: training every weight changes the engine's base model.
  void start() {
    engine_ = std::make_unique<Engine>(
        EngineOptions{.model = {.path = model_.path(), .mixed_precision = "no"}});
    engine_->run<Done>(Create{.tenant = "me", .lora_json = GetParam() ? "" : kOfTenant, .seed = 3});
    // B starts at zero, where half of the gradients are.
    engine_->run<ForwardResult>(work("me"));
    engine_->run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.01})"});
  }

  std::map<std::string, std::vector<float>> tensors() {
    std::map<std::string, std::vector<float>> out;
    for (auto& t : engine_->run<InspectResult>(Inspect{"me", true}).tensors) out[t.name] = t.values;
    return out;
  }
  StepResult step(double max_norm = 0) {
    return engine_->run<StepResult>(
        Step{.tenant = "me", .options = R"({"lr": 0.01})", .max_grad_norm = max_norm});
  }

  const model::TinyModel model_;
  std::unique_ptr<Engine> engine_;
};

double distance(const std::map<std::string, std::vector<float>>& a,
                const std::map<std::string, std::vector<float>>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (const auto& [name, values] : a) {
    for (size_t i = 0; i < values.size(); ++i)
      most = std::max(most, std::abs(static_cast<double>(values[i]) - b.at(name).at(i)));
  }
  return most;
}

TEST_P(TenantTest, ASumCountsItsScoredRowsAMeanOneAndRowsWithoutWeightNothing) {
  ForwardBackward operation{.tenant = "me", .sequences = {drawn(1, 5), drawn(2, 4)}};
  operation.sequences[1].labels = {-100, 3, -100, 4};
  const auto tokens = [&] {
    const double counted = engine_->run<ForwardResult>(operation).num_tokens;
    EXPECT_EQ(engine_->run<InspectResult>(Inspect{"me"}).num_tokens, counted);
    engine_->run<Done>(ZeroGrad{"me"});
    return counted;
  };
  EXPECT_EQ(tokens(), 7);
  operation.loss_options = R"({"reduction": "mean"})";
  EXPECT_EQ(tokens(), 1);
  for (Example& s : operation.sequences) s.weights.assign(s.labels.size(), 0.0f);
  EXPECT_EQ(tokens(), 0);
  operation.loss_options = "";
  EXPECT_EQ(tokens(), 0);
}

TEST_P(TenantTest, MicroBatchesAndOneStepEqualOneBatchOfAllOfThem) {
  const std::vector<Example> all{drawn(1, 5), drawn(2, 12), drawn(3, 1), drawn(4, 7)};
  const double loss =
      engine_->run<ForwardResult>(ForwardBackward{.tenant = "me", .sequences = all}).loss;
  const auto whole_grads = engine_->run<InspectResult>(Inspect{"me"});
  EXPECT_EQ(whole_grads.num_tokens, 25);
  const StepResult whole = step();
  const auto want = tensors();
  start();
  double sum = 0;
  for (const Example& s : all)
    sum += engine_->run<ForwardResult>(ForwardBackward{.tenant = "me", .sequences = {s}}).loss;
  EXPECT_NEAR(sum, loss, 1e-4 * loss);
  EXPECT_EQ(engine_->run<InspectResult>(Inspect{"me"}).num_tokens, 25);
  const StepResult parts = step();
  EXPECT_EQ(parts.num_tokens, 25);
  EXPECT_EQ(parts.step, 2);
  // Sequences are units of their own: the bits are the same, not only the numbers.
  EXPECT_EQ(engine_->run<InspectResult>(Inspect{"me"}).step, 2);
  EXPECT_NEAR(parts.grad_norm, whole.grad_norm, 1e-12);
  EXPECT_EQ(distance(tensors(), want), 0);
}

TEST_P(TenantTest, AStepDividesByTheTokensAndZeroesTheGradients) {
  engine_->run<ForwardResult>(work("me"));
  double squares = 0;
  for (const auto& [name, values] : tensors()) {
    if (!name.starts_with("grad/")) continue;
    for (const float v : values) squares += static_cast<double>(v) * v;
  }
  EXPECT_NEAR(step().grad_norm, std::sqrt(squares) / 15, 1e-6 * std::sqrt(squares));
  const auto after = engine_->run<InspectResult>(Inspect{"me"});
  EXPECT_EQ(after.num_tokens, 0);
  for (const auto& [name, values] : tensors()) {
    if (!name.starts_with("grad/")) continue;
    for (const float v : values) EXPECT_EQ(v, 0) << name;
  }
}

TEST_P(TenantTest, AStepThatDoesNotDivideTakesTheSumsOfSplitAndOfCombinedRequestsAlike) {
  const std::vector<Example> all{drawn(1, 5), drawn(2, 12), drawn(3, 1), drawn(4, 7)};
  const auto stepped = [&](const std::vector<std::vector<Example>>& requests, bool divide) {
    start();
    for (const auto& sequences : requests)
      engine_->run<ForwardResult>(ForwardBackward{.tenant = "me", .sequences = sequences});
    const auto result = engine_->run<StepResult>(
        Step{.tenant = "me", .optimizer = "SGD", .options = R"({"lr": 0.001})", .divide = divide});
    EXPECT_EQ(result.num_tokens, 25);
    return std::pair(result.grad_norm, tensors());
  };
  const auto whole = stepped({all}, false);
  const auto parts = stepped({{all[0]}, {all[1], all[2]}, {all[3]}}, false);
  EXPECT_LT(distance(parts.second, whole.second), 1e-6);
  EXPECT_NEAR(parts.first, whole.first, 1e-6 * whole.first);
  const auto divided = stepped({all}, true);
  EXPECT_NEAR(whole.first, 25 * divided.first, 1e-9 * whole.first);
  EXPECT_GT(distance(divided.second, whole.second), 1e-4);
}

TEST_P(TenantTest, AStepThatDoesNotDivideRefusesWhatHasBeenDivided) {
  engine_->run<ForwardResult>(work("me", 5));
  engine_->run<StepResult>(ClipGradNorm{.tenant = "me"});
  const State before = state_of(*engine_, "me");
  EXPECT_EQ(error_of([&] { engine_->run<StepResult>(Step{.tenant = "me", .divide = false}); }),
            "engine: step: divide is false, but the gradients of tenant 'me' have been divided by "
            "clip_grad_norm; give max_grad_norm to the step instead");
  EXPECT_EQ(state_of(*engine_, "me"), before);
}

TEST_P(TenantTest, ClippingFirstEqualsClippingInTheStep) {
  engine_->run<ForwardResult>(work("me", 5));
  const StepResult inside = step(0.01);
  const auto want = tensors();
  EXPECT_GT(inside.grad_norm, 0.01);
  start();
  engine_->run<ForwardResult>(work("me", 5));
  const auto clip = engine_->run<StepResult>(ClipGradNorm{.tenant = "me", .max_grad_norm = 0.01});
  EXPECT_EQ(clip.grad_norm, inside.grad_norm) << "the norm before clipping";
  EXPECT_EQ(clip.num_tokens, 15);
  EXPECT_NEAR(step().grad_norm, 0.01, 1e-5);
  EXPECT_LT(distance(tensors(), want), 1e-4);
}

// Clipped gradients are means, later ones would be sums.
TEST_P(TenantTest, ClippedGradientsTakeNoMoreBeforeAStepOrZeroGrad) {
  for (const double limit : {0.01, 0.0}) {
    engine_->run<ForwardResult>(work("me", 5));
    engine_->run<StepResult>(ClipGradNorm{.tenant = "me", .max_grad_norm = limit});
    const State before = state_of(*engine_, "me");
    EXPECT_EQ(error_of([&] { engine_->run<ForwardResult>(work("me", 6)); }),
              "engine: forward_backward: the gradients of tenant 'me' have been divided by their "
              "tokens and clipped (clip_grad_norm), and more can't be added to them; step or "
              "zero_grad first");
    EXPECT_EQ(state_of(*engine_, "me"), before);
    engine_->run<ForwardResult>(Forward{.tenant = "me", .sequences = {drawn(1, 4)}});
    if (limit > 0)
      step();
    else
      engine_->run<Done>(ZeroGrad{"me"});
  }
  engine_->run<ForwardResult>(work("me", 6));
}

TEST_P(TenantTest, AClipThatWouldLeaveNothingIsRefused) {
  engine_->run<ForwardResult>(work("me", 5));
  const State before = state_of(*engine_, "me");
  for (const auto& [limit, norm_type] : {std::pair{1.0, 0.01}, {1e-300, 2.0}}) {
    const ClipGradNorm clip{.tenant = "me", .max_grad_norm = limit, .norm_type = norm_type};
    EXPECT_NE(error_of([&] { engine_->run<StepResult>(clip); }), "no error") << limit;
    EXPECT_EQ(state_of(*engine_, "me"), before);
  }
  EXPECT_GT(engine_->run<StepResult>(ClipGradNorm{.tenant = "me", .norm_type = 1e300}).grad_norm,
            0);
}

TEST_P(TenantTest, AStepThatWouldLeaveInfinityChangesNothing) {
  ForwardBackward steep = work("me");
  for (Example& s : steep.sequences) s.weights.assign(s.input_ids.size(), 1e6F);
  engine_->run<ForwardResult>(steep);
  const State before = state_of(*engine_, "me");
  const Step step{.tenant = "me", .optimizer = "SGD", .options = R"({"lr": 3e38})"};
  const std::string text = error_of([&] { engine_->run<StepResult>(step); });
  EXPECT_NE(text.find("would leave NaN or infinity in model."), text.npos) << text;
  EXPECT_EQ(state_of(*engine_, "me"), before);
}

TEST_P(TenantTest, AnInfiniteLimitMeasuresAndDoesNotClip) {
  engine_->run<ForwardResult>(work("me", 5));
  const StepResult want = step(0);
  const State unclipped = state_of(*engine_, "me");
  start();
  engine_->run<ForwardResult>(work("me", 5));
  EXPECT_EQ(step(INFINITY).grad_norm, want.grad_norm);
  EXPECT_EQ(state_of(*engine_, "me"), unclipped);
  engine_->run<ForwardResult>(work("me", 5));
  const auto clip =
      engine_->run<StepResult>(ClipGradNorm{.tenant = "me", .max_grad_norm = INFINITY});
  EXPECT_GT(clip.grad_norm, 0);
  EXPECT_NEAR(step().grad_norm, clip.grad_norm, 1e-6 * clip.grad_norm);
}

TEST_P(TenantTest, WithoutGradientsThereIsNothingToStepOrClip) {
  const State before = state_of(*engine_, "me");
  EXPECT_EQ(error_of([&] { step(); }),
            "engine: step: tenant 'me' has no accumulated gradients; run forward_backward first");
  EXPECT_EQ(error_of([&] { engine_->run<StepResult>(ClipGradNorm{"me"}); }),
            "engine: clip_grad_norm: tenant 'me' has no accumulated gradients; run "
            "forward_backward first");
  engine_->run<ForwardResult>(work("me"));
  engine_->run<Done>(ZeroGrad{"me"});
  EXPECT_NE(error_of([&] { step(); }).find("no accumulated gradients"), std::string::npos);
  EXPECT_EQ(std::get<0>(state_of(*engine_, "me")), std::get<0>(before));
}

TEST_P(TenantTest, AStepToWhichNoneIsZeroIsThatOfGradientsOfZero) {
  const Step zero{.tenant = "me",
                  .options = R"({"lr": 0.01, "weight_decay": 0.1})",
                  .max_grad_norm = 1,
                  .divide = false,
                  .none_is_zero = true};
  const State before = state_of(*engine_, "me");
  const StepResult none = engine_->run<StepResult>(zero);
  EXPECT_EQ(none.grad_norm, 0);
  EXPECT_EQ(none.step, 2);
  const State got = state_of(*engine_, "me");
  EXPECT_NE(std::get<0>(got), std::get<0>(before)) << "the moments go on, and weights decay";
  start();
  ForwardBackward weightless = work("me");
  for (Example& s : weightless.sequences) s.weights.assign(s.labels.size(), 0.0F);
  engine_->run<ForwardResult>(weightless);
  engine_->run<StepResult>(zero);
  EXPECT_EQ(state_of(*engine_, "me"), got);
}

// A loss whose derivatives are finite, unlike their products.
ForwardBackward overflowing() {
  ForwardBackward out = work("me");
  out.loss = "LinearLoss";
  for (Example& s : out.sequences) s.extras["grad"].assign(s.input_ids.size(), 3e38f);
  return out;
}

TEST_P(TenantTest, GradientsThatOverflowAreRefusedAndThoseBeforeKeepTheirBits) {
  for (const bool more : {false, true}) {
    if (more) engine_->run<ForwardResult>(work("me", 5));
    const State before = state_of(*engine_, "me");
    EXPECT_EQ(error_of([&] { engine_->run<ForwardResult>(overflowing()); }),
              "engine: the log-probabilities or the gradient of tenant 'me' are not finite (NaN or "
              "infinity): nothing was changed; look at its learning rate, its weights and its "
              "extras");
    EXPECT_EQ(state_of(*engine_, "me"), before) << more;
  }
  EXPECT_TRUE(std::isfinite(step().grad_norm));
}

// One batch takes all three, unless every weight is trained.
TEST_P(TenantTest, AmongOperationsOfOneBatchTheOneThatOverflowsIsRefusedAlone) {
  engine_->run<ForwardResult>(work("me", 5));
  engine_->run<ForwardResult>(work("me", 6));
  const State want = state_of(*engine_, "me");
  engine_->run<Done>(ZeroGrad{"me"});
  std::vector<Future> futures = engine_->submit(
      {Operation(work("me", 5)), Operation(overflowing()), Operation(work("me", 6))});
  futures[0].get();
  EXPECT_NE(error_of([&] { futures[1].get(); }).find("are not finite"), std::string::npos);
  futures[2].get();
  EXPECT_EQ(state_of(*engine_, "me"), want);
}

TEST_P(TenantTest, WrongOptionsOfAStepKeepTheGradients) {
  engine_->run<ForwardResult>(work("me"));
  const State before = state_of(*engine_, "me");
  for (const Step& bad :
       {Step{.tenant = "me", .optimizer = "Lamb"},
        Step{.tenant = "me", .options = R"({"speed": 3})"},
        Step{.tenant = "me", .options = R"({"lr": -1})"}, Step{.tenant = "me", .options = "{"},
        Step{.tenant = "me", .max_grad_norm = -1},
        Step{.tenant = "me", .max_grad_norm = std::nan("")},
        Step{.tenant = "me", .norm_type = 0}}) {
    EXPECT_NE(error_of([&] { engine_->run<StepResult>(bad); }), "no error");
    EXPECT_EQ(state_of(*engine_, "me"), before);
  }
  EXPECT_EQ(error_of([&] { step(-2); }),
            "engine: max_grad_norm is -2, it must be at least 0; 0 and infinity do not clip");
}

// Wherever it runs out: with the state of the optimizer, with another one, with a version that
// keeps the weights, so that they are copied first.
TEST_P(TenantTest, AStepThatRunsOutOfMemoryChangesNothing) {
  for (const Step& operation :
       {Step{.tenant = "me", .options = R"({"lr": 0.01, "eps": 0.1})"},
        Step{.tenant = "me", .optimizer = "SGD", .options = R"({"lr": 0.01, "momentum": 0.5})"}}) {
    const auto prepare = [&] {
      start();
      if (!GetParam()) engine_->run<PublishResult>(Publish{"me"});
      engine_->run<ForwardResult>(work("me", 2));
    };
    prepare();
    engine_->run<StepResult>(operation);
    const State want = state_of(*engine_, "me");
    prepare();
    const State before = state_of(*engine_, "me");
    const auto taken = [&](int64_t num_allocations) {
      const Shortage shortage(num_allocations);
      try {
        engine_->run<StepResult>(operation);
      } catch (const std::bad_alloc&) {
        return false;
      }
      return true;
    };
    int64_t n = 0;
    for (; !taken(n); ++n)
      EXPECT_EQ(state_of(*engine_, "me"), before) << operation.optimizer << " " << n;
    EXPECT_GT(n, 0);
    EXPECT_EQ(state_of(*engine_, "me"), want);
  }
}

TEST(FullTenant, ADeleteThatFailsChangesNothing) {
  namespace fs = std::filesystem;
  const model::TinyModel model;
  const fs::path weights = fs::path(model.path()) / "model.safetensors",
                 away = weights.string() + "x";
  const Forward score{.tenant = "me", .sequences = {drawn(1, 20)}};
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "me"});
  const auto base = engine.run<ForwardResult>(score).logps;
  engine.run<ForwardResult>(work("me"));
  engine.run<StepResult>(Step{.tenant = "me", .options = R"({"lr": 0.1})"});
  engine.run<ForwardResult>(work("me"));
  const State before = state_of(engine, "me");
  const auto trained = engine.run<ForwardResult>(score).logps;
  fs::rename(weights, away);
  EXPECT_NE(error_of([&] { engine.run<Done>(Delete{"me"}); }).find(model.path()),
            std::string::npos);
  EXPECT_EQ(state_of(engine, "me"), before);
  EXPECT_EQ(engine.run<ForwardResult>(score).logps, trained);
  fs::rename(away, weights);
  engine.run<Done>(Delete{"me"});
  engine.run<Done>(Create{.tenant = "me", .frozen = true});
  EXPECT_EQ(engine.run<ForwardResult>(score).logps, base);
}

INSTANTIATE_TEST_SUITE_P(LoraAndFull, TenantTest, testing::Bool());

TEST(Tenant, TheFrozenBaseScoresAndDoesNotTrain) {
  const model::TinyModel model;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{.tenant = "base", .frozen = true});
  EXPECT_EQ(engine.run<InspectResult>(Inspect{"base"}).num_parameters, 0);
  engine.run<ForwardResult>(Forward{.tenant = "base", .sequences = {drawn(1, 4)}});
  const std::string why =
      "tenant 'base' is the frozen base model; add an adapter, or create it for full-parameter "
      "training";
  EXPECT_EQ(error_of([&] { engine.run<ForwardResult>(work("base")); }),
            "engine: forward_backward: " + why);
  EXPECT_EQ(error_of([&] { engine.run<StepResult>(Step{"base"}); }), "engine: step: " + why);
  EXPECT_EQ(error_of([&] { engine.run<StepResult>(ClipGradNorm{"base"}); }),
            "engine: clip_grad_norm: " + why);
  engine.run<Done>(ZeroGrad{"base"});
}

TEST(Tenant, WhoTrainsAllWeightsIsNoReferenceOfItself) {
  const model::TinyModel model;
  Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
  engine.run<Done>(Create{"policy"});
  const Forward reference{.tenant = "policy", .sequences = {drawn(1, 4)}, .disable_lora = true};
  EXPECT_EQ(
      error_of([&] { engine.run<ForwardResult>(reference); }),
      "engine: forward: disable_lora is true, but tenant 'policy' trains all weights: without "
      "an adapter the base model is the model that it trains, and no reference; take a second "
      "model of the same files, or pass the ref_logps that it gave before it was trained");
  engine.run<Done>(Delete{"policy"});
  engine.run<Done>(Create{.tenant = "policy", .frozen = true});
  engine.run<ForwardResult>(reference);
}

TEST(Tenant, TheFrozenBasesChecksumIsThatOfTheBaseWeights) {
  const model::TinyModel model;
  Engine engine({.model = {.path = model.path()}});
  const auto base = [&] {
    engine.run<Done>(Create{.tenant = "base", .frozen = true});
    const auto out = engine.run<InspectResult>(Inspect{"base", true});
    engine.run<Done>(Delete{"base"});
    return out;
  };
  const auto before = base();
  EXPECT_EQ(before.tensors.size(), model::tiny_weights(model::tiny_config()).size());
  EXPECT_EQ(before.num_parameters, 0);

  engine.run<Done>(Create{.tenant = "all"});
  const auto weights = [&] { return engine.run<InspectResult>(Inspect{"all"}).weights; };
  const uint64_t untrained = weights();
  engine.run<ForwardResult>(work("all"));
  engine.run<StepResult>(Step{.tenant = "all", .options = R"({"lr": 0.01})"});
  EXPECT_NE(weights(), untrained);
  engine.run<Done>(Delete{"all"});
  EXPECT_EQ(base().weights, before.weights) << "they were put back";
}

}  // namespace
}  // namespace twinkle::engine
