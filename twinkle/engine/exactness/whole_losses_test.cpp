// Losses of whole operations that take several batches: what is kept between them changes no bit.
#include <gtest/gtest.h>

#include "twinkle/engine/exactness/schedules_for_test.h"

namespace twinkle::engine {
namespace {

// As some_schedule, but that most of what learns has a loss of the whole operation. Some can't be:
// an odd number of replies, or one that is weighed.
std::vector<Owned> losses_schedule(uint64_t seed, const std::string& folder) {
  std::vector<Owned> out = some_schedule(seed, folder, 3, 30);
  uint64_t key = key_of(seed, "losses");
  for (Owned& owned : out) {
    auto* op = std::get_if<ForwardBackward>(&owned.operation);
    if (!op || op->loss == "LinearLoss" || op->loss == "NoSuchLoss") continue;
    const uint64_t which = draw(key, 5);
    if (which == 0) continue;
    for (uint64_t more = draw(key, 5); more > 0; --more)
      op->sequences.push_back(drawn(key_of(key, more), 1 + draw(key, 9), 41));
    op->loss = std::vector{"GSPOLoss", "ORPOLoss", "CPOLoss", "DPOLoss"}[which - 1];
    for (Example& s : op->sequences) {
      if (op->loss == "DPOLoss") s.extras["ref_sums"] = {-4.0f};
      if (op->loss == "GSPOLoss") s.extras["advantages"].assign(s.input_ids.size(), 0.7f);
    }
    if (op->loss == "GSPOLoss") op->loss_options = R"({"entropy_coef": 0.1})";
  }
  return out;
}

TEST(KeptPasses, GiveEachTenantWhatASerialReferenceGivesItWithinAnyLimit) {
  const model::TinyModel model(smallest_config());
  std::map<int64_t, int64_t> passes;
  for (uint64_t seed = 1; seed <= num_drawn(15); ++seed) {
    uint64_t key = key_of(seed, "options");
    EngineOptions options{
        .model = {.path = model.path(), .mixed_precision = draw(key, 2) ? "bf16" : "no"},
        .scheduling = {.token_budget = 1 + static_cast<int64_t>(draw(key, 30))},
        .sampler = {.kv_tokens = 512}};
    for (const int64_t limit : {int64_t{0}, int64_t{12000}, int64_t{1}}) {
      options.model.activation_bytes = limit;
      const ScratchDir scratch;
      const std::string folder = scratch.path().string();
      const std::vector<Owned> schedule = losses_schedule(seed, folder);
      Outcomes got;
      {
        const ScratchDir parked;
        EngineOptions parking = options;
        parking.parking.directory = parked.path().string();
        Engine engine(parking, in_letters);
        got = at_once(engine, schedule, folder, seed);
        passes[limit] += engine.num_passes();
        EXPECT_EQ(engine.num_kept_bytes(), 0);
      }
      EngineOptions reference = options;
      reference.scheduling.token_budget = 4096;
      for (size_t t = 0; t < got.of.size(); ++t) {
        const ScratchDir fresh;
        const std::string place = fresh.path().string();
        Engine engine(reference, in_letters);
        const auto want = one_by_one(engine, t, losses_schedule(seed, place), place, got.cancelled);
        ASSERT_EQ(got.of[t], want) << "seed " << seed << ", tenant " << t << ", limit " << limit;
      }
    }
  }
  EXPECT_LT(passes.at(0), passes.at(1)) << "some operations have taken one forward of a sequence";
}

TEST(KeptPasses, TakeOneForwardOfEachBatchInPlaceOfTwoForEveryLossOfTheWhole) {
  const model::TinyModel model(smallest_config());
  for (const char* loss : {"GSPOLoss", "gspo", "DPOLoss", "SimPOLoss", "CPOLoss", "ORPOLoss"}) {
    SCOPED_TRACE(loss);
    ForwardBackward op{.tenant = "a", .loss = loss, .logits = true};
    for (uint64_t s = 0; s < 6; ++s) {
      Example example = drawn(s + 1, 8, 41);
      const std::vector<float> ones(8, 1.0f);
      if (op.loss == "GSPOLoss") example.extras["advantages"] = ones;
      if (op.loss == "gspo")
        example.extras = {{"advantages", ones},
                          {"logprobs", std::vector<float>(8, -3.0f)},
                          {"sequence_ratio_mask", ones}};
      if (op.loss == "DPOLoss") example.extras["ref_sums"] = {-20.0f};
      op.sequences.push_back(std::move(example));
    }
    std::vector<std::string> outcomes;
    for (const int64_t limit : {0, 1}) {
      Engine engine({.model = {.path = model.path(), .activation_bytes = limit},
                     .scheduling = {.token_budget = 16},
                     .sampler = {.kv_tokens = 512}});
      engine.run<Done>(Create{.tenant = "a",
                              .lora_json = R"({"r": 3, "target_modules": "all-linear",)"
                                           R"( "lora_dropout": 0.3})"});
      engine.run<ForwardResult>(
          ForwardBackward{.tenant = "a", .sequences = {drawn(9, 8, 41)}});  // gradients to add to
      const int64_t before = engine.num_passes();
      auto future = engine.submit(op);
      const std::string outcome = outcome_of(future);
      EXPECT_EQ(engine.num_passes() - before, limit == 0 ? 3 : 6) << outcome;
      auto state = engine.submit(Inspect{"a", true});
      outcomes.push_back(outcome + outcome_of(state));
    }
    EXPECT_EQ(outcomes[0], outcomes[1]);
  }
}

}  // namespace
}  // namespace twinkle::engine
