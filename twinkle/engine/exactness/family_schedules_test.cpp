// As schedules_test.cpp, of models whose mixers keep latents or a state, with routed experts:
// prompts cut at drawn places, shared prefixes, forks, preempted sequences, parked tenants, among
// others and alone. In every other schedule experts share factors of the adapters.
#include <gtest/gtest.h>

#include "twinkle/engine/exactness/schedules_for_test.h"
#include "twinkle/model/tiny_families.h"

namespace twinkle::engine {
namespace {

constexpr size_t kFamilyTenants = 3;

// Two layers of the sizes that schedules are drawn for, with the family's fields besides.
JsonObject family_config(const std::string& family) {
  JsonObject c = smallest_config(family);
  for (const auto& [key, value] : model::tiny_family(family)) {
    if (!c.contains(key)) c[key] = value;
  }
  c["num_hidden_layers"] = 2;
  if (family == "deepseek_v3") {
    c["num_key_value_heads"] = c["num_attention_heads"];
    c["q_lora_rank"] = nullptr;  // adapters name q_proj
  }
  if (family == "qwen3_next") c["layer_types"] = JsonArray{"linear_attention", "full_attention"};
  return c;
}

EngineOptions family_options(const model::TinyModel& model, uint64_t seed) {
  uint64_t key = key_of(seed, "options");
  return {.model = {.path = model.path(), .mixed_precision = draw(key, 2) ? "bf16" : "no"},
          .scheduling = {.token_budget = 1 + static_cast<int64_t>(draw(key, 40))},
          .sampler = {.kv_tokens = 256,  // a few sequences' pages: the last ones are preempted
                      .max_sequences = 1 + static_cast<int64_t>(draw(key, 6)),
                      .prefill_tokens = 1 + static_cast<int64_t>(draw(key, 12))}};
}

std::vector<Owned> family_schedule(const std::string& family, uint64_t seed,
                                   const std::string& folder) {
  std::vector<Owned> out =
      some_schedule(seed, folder, kFamilyTenants, 12 + key_of(seed, "length") % 24);
  for (Owned& item : out) {
    auto* create = std::get_if<Create>(&item.operation);
    if (!create || create->lora_json.empty()) continue;
    const size_t at = create->lora_json.find("0.2");
    if (family == "deepseek_v3" && at != std::string::npos)
      create->lora_json.replace(at, 3, "0.0");  // kv_b_proj's adapters have no dropout
    if (seed % 2 == 0) create->lora_json.insert(1, R"("share_expert_factors": true, )");
  }
  return out;
}

class FamilySchedules : public testing::TestWithParam<std::string> {};

TEST_P(FamilySchedules, GiveEachTenantWhatASerialReferenceGivesIt) {
  const model::TinyModel model(family_config(GetParam()));
  const uint64_t num_schedules = num_drawn(24);
  uint64_t operations = 0, errors = 0, heard = 0, pinned = 0;
  for (uint64_t seed = 1; seed <= num_schedules; ++seed) {
    const ScratchDir scratch, parked;
    const std::string folder = scratch.path().string();
    EngineOptions options = family_options(model, seed);
    options.parking.directory = parked.path().string();
    Engine engine(options, in_letters);
    const Outcomes got = at_once(engine, family_schedule(GetParam(), seed, folder), folder, seed);

    options = family_options(model, seed);
    options.scheduling.token_budget = 4096;
    options.sampler = {.kv_tokens = 4096, .max_sequences = 64, .prefill_tokens = 512};
    for (size_t t = 0; t < kFamilyTenants; ++t) {
      const ScratchDir own;
      Engine alone(options, in_letters);
      const std::string there = own.path().string();
      const auto schedule = family_schedule(GetParam(), seed, there);
      const auto want = one_by_one(alone, t, schedule, there, got.cancelled);
      ASSERT_EQ(got.of[t], want) << "seed " << seed;
      operations += want.size();
      for (const std::string& text : want) errors += text.starts_with("engine:") ? 1 : 0;
    }
    heard += got.num_heard;
    pinned += got.num_pinned;
  }
  EXPECT_GT(operations, 20 * num_schedules);
  EXPECT_LT(errors, operations / 2);
  EXPECT_GT(heard, 3 * num_schedules);
  EXPECT_GT(pinned, num_schedules / 8);
}

INSTANTIATE_TEST_SUITE_P(All, FamilySchedules,
                         testing::Values("deepseek_v3", "qwen3_next", "gpt_oss"));

}  // namespace
}  // namespace twinkle::engine
