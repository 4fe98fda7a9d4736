// The auxiliary loss of routed experts on an engine: it changes nothing but gradients, these have
// the same bits however a batch is cut and whatever shares it, and models without one refuse it.
// Its numbers against transformers': tests/parity/families/test_aux_loss.py.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <utility>

#include "twinkle/base/error_for_test.h"
#include "twinkle/engine/exactness/routed_for_test.h"
#include "twinkle/engine/group/groups_for_test.h"

namespace twinkle::engine {
namespace {

ForwardBackward balanced(const std::string& tenant, const std::string& loss, double coefficient) {
  ForwardBackward op{
      .tenant = tenant, .sequences = {drawn(1, 30), drawn(2, 7), drawn(3, 12)}, .loss = loss};
  if (loss == "GSPOLoss") {
    for (Example& s : op.sequences) s.extras["advantages"].assign(s.input_ids.size(), 0.7f);
  }
  op.router_aux_loss_coef = coefficient;
  return op;
}

class AuxLossOnEngine : public RoutedOnEngine {};

struct AuxNumbers {
  ForwardResult result;
  uint64_t gradients = 0;
  bool operator==(const AuxNumbers&) const = default;
};

AuxNumbers aux_numbers(Engine& engine, std::vector<Operation> operations) {
  auto futures = engine.submit(std::move(operations));
  AuxNumbers out{.result = std::get<ForwardResult>(futures[0].get())};
  for (size_t i = 1; i < futures.size(); ++i) futures[i].get();
  out.gradients = engine.run<InspectResult>(Inspect{"a"}).gradients;
  return out;
}

TEST_F(AuxLossOnEngine, GradientsHaveTheSameBitsHoweverTheyAreComputedAndWhoeverSharesTheBatch) {
  // The second needs all log-probabilities of the operation before its first backward pass.
  const std::pair<const char*, const char*> kinds[] = {{"bf16", "CrossEntropyLoss"},
                                                       {"no", "GSPOLoss"}};
  for (const auto& [precision, loss] : kinds) {
    SCOPED_TRACE(loss);
    const Operation mine = balanced("a", loss, 0.05);
    const AuxNumbers want = aux_numbers(*engine(4096, 0, precision), {mine});
    EXPECT_GT(want.result.aux_loss, 0);
    for (const double coefficient : {0.3, 0.0}) {
      const Operation other = balanced("b", "CrossEntropyLoss", coefficient);
      EXPECT_TRUE(aux_numbers(*engine(4096, 0, precision), {mine, other}) == want) << coefficient;
    }
    EXPECT_TRUE(aux_numbers(*engine(20, 0, precision), {mine}) == want) << "in pieces";
    const auto little = engine(20, 1, precision);
    EXPECT_TRUE(aux_numbers(*little, {mine}) == want) << "layers computed again";
    EXPECT_GT(little->num_recomputed_layers(), 0);
  }
}

TEST_F(AuxLossOnEngine, RanksThatShareAPassHaveTheBitsOfOne) {
  const ForwardBackward op = balanced("a", "CrossEntropyLoss", 0.05);
  const AuxNumbers want = aux_numbers(*engine(), {op});
  const EngineOptions options{.model = {.path = model_.path(), .mixed_precision = "no"}};
  on_ranks({.dp = 2}, options, [&](Engine& of_rank, int rank, const mesh::SentBytes&) {
    create(of_rank);
    const AuxNumbers got = aux_numbers(of_rank, {sliced(op, rank == 0 ? Part{0, 1} : Part{1, 3})});
    EXPECT_EQ(got.result.aux_loss, want.result.aux_loss);
    EXPECT_EQ(got.gradients, want.gradients);
  });
}

TEST_F(AuxLossOnEngine, ItChangesGradientsAlone) {
  AuxNumbers with = aux_numbers(*engine(), {balanced("a", "CrossEntropyLoss", 0.05)});
  const AuxNumbers without = aux_numbers(*engine(), {balanced("a", "CrossEntropyLoss", 0)});
  EXPECT_EQ(without.result.aux_loss, 0);
  EXPECT_NE(with.gradients, without.gradients);
  with.result.aux_loss = 0;
  EXPECT_TRUE(with.result == without.result);
  // One that does not ask has the same bits beside one that does.
  EXPECT_TRUE(aux_numbers(*engine(), {balanced("a", "CrossEntropyLoss", 0),
                                      balanced("b", "CrossEntropyLoss", 0.3)}) == without);
}

// Its tenant's other operation has added its gradients in the same pass, which stay.
TEST_F(AuxLossOnEngine, OfAnOperationThatFailsItTeachesNothing) {
  const Operation good = balanced("a", "CrossEntropyLoss", 0.05);
  ForwardBackward bad = balanced("a", "LinearLoss", 0.05);
  for (Example& s : bad.sequences)
    s.extras["grad"].assign(s.input_ids.size(), std::numeric_limits<float>::infinity());
  const uint64_t want = aux_numbers(*engine(), {good}).gradients;
  const auto both = engine();
  auto futures = both->submit(std::vector<Operation>{good, bad});
  futures[0].get();
  EXPECT_NE(error_of([&] { futures[1].get(); }), "no error");
  EXPECT_EQ(both->run<InspectResult>(Inspect{"a"}).gradients, want);
}

TEST_F(AuxLossOnEngine, CoefficientsThatCannotBeAreRefused) {
  const auto made = engine();
  const auto refusal = [&](double coefficient) {
    return error_of(
        [&] { made->run<ForwardResult>(balanced("a", "CrossEntropyLoss", coefficient)); });
  };
  EXPECT_EQ(refusal(-1),
            "engine: router_aux_loss_coef is -1, it must be at least 0 and finite; 0 means none");
  EXPECT_EQ(refusal(std::numeric_limits<double>::infinity()),
            "engine: router_aux_loss_coef is inf, it must be at least 0 and finite; 0 means none");
}

TEST(AuxLoss, ModelsWithoutOneRefuseIt) {
  JsonObject corrected = routed_config("glm4_moe");
  corrected.erase("num_experts");
  corrected["n_routed_experts"] = 6;
  for (const JsonObject& config : {model::tiny_config(), corrected}) {
    const model::TinyModel model(config);
    Engine engine({.model = {.path = model.path(), .mixed_precision = "no"}});
    engine.run<Done>(
        Create{.tenant = "a", .lora_json = R"({"r": 2, "target_modules": ["q_proj"]})"});
    const std::string family(config.at("model_type").as_string());
    EXPECT_EQ(
        error_of([&] { engine.run<ForwardResult>(balanced("a", "CrossEntropyLoss", 0.001)); }),
        "engine: router_aux_loss_coef is 0.001, but models of " + family +
            " have no auxiliary loss of experts; leave it out");
  }
}

}  // namespace
}  // namespace twinkle::engine
