// As schedules_test.cpp, of a model with latent attention and routed experts: prompts cut at drawn
// places, shared prefixes, forks, preempted sequences, parked tenants, among others and alone. In
// every other schedule experts share factors of the adapters.
#include <gtest/gtest.h>

#include "twinkle/engine/exactness/schedules_for_test.h"

namespace twinkle::engine {
namespace {

constexpr uint64_t kSchedules = 60;
constexpr size_t kTenants = 3;

JsonObject latent_config() {
  JsonObject c = smallest_config("deepseek_v3");
  c["num_hidden_layers"] = 2;
  c["num_key_value_heads"] = 2;
  c["q_lora_rank"] = nullptr;
  c["kv_lora_rank"] = 10;
  c["qk_nope_head_dim"] = 6;
  c["qk_rope_head_dim"] = 4;
  c["v_head_dim"] = 5;
  c["n_routed_experts"] = 4;
  c["num_experts_per_tok"] = 2;
  c["moe_intermediate_size"] = 8;
  c["first_k_dense_replace"] = 1;
  c["n_group"] = 2;
  c["topk_group"] = 1;
  return c;
}

EngineOptions options_of(const model::TinyModel& model, uint64_t seed) {
  uint64_t key = key_of(seed, "options");
  return {.model = {.path = model.path(), .mixed_precision = draw(key, 2) ? "bf16" : "no"},
          .scheduling = {.token_budget = 1 + static_cast<int64_t>(draw(key, 40))},
          .sampler = {.kv_tokens = 256,  // a few sequences' pages: the last ones are preempted
                      .max_sequences = 1 + static_cast<int64_t>(draw(key, 6)),
                      .prefill_tokens = 1 + static_cast<int64_t>(draw(key, 12))}};
}

// Without dropout, which kv_b_proj's adapters don't have.
std::vector<Owned> schedule_of(uint64_t seed, const std::string& folder) {
  std::vector<Owned> out = some_schedule(seed, folder, kTenants, 12 + key_of(seed, "length") % 24);
  for (Owned& item : out) {
    auto* create = std::get_if<Create>(&item.operation);
    const size_t at = create ? create->lora_json.find("0.2") : std::string::npos;
    if (at != std::string::npos) create->lora_json.replace(at, 3, "0.0");
    if (create && !create->lora_json.empty() && seed % 2 == 0)
      create->lora_json.insert(1, R"("share_expert_factors": true, )");
  }
  return out;
}

TEST(LatentSchedules, GiveEachTenantWhatASerialReferenceGivesIt) {
  const model::TinyModel model(latent_config());
  int operations = 0, errors = 0;
  size_t heard = 0, pinned = 0;
  for (uint64_t seed = 1; seed <= kSchedules; ++seed) {
    const ScratchDir scratch, parked;
    const std::string folder = scratch.path().string();
    EngineOptions options = options_of(model, seed);
    options.parking.directory = parked.path().string();
    Engine engine(options, in_letters);
    const Outcomes got = at_once(engine, schedule_of(seed, folder), folder, seed);

    options = options_of(model, seed);
    options.scheduling.token_budget = 4096;
    options.sampler = {.kv_tokens = 4096, .max_sequences = 64, .prefill_tokens = 512};
    for (size_t t = 0; t < kTenants; ++t) {
      const ScratchDir own;
      Engine alone(options, in_letters);
      const std::string there = own.path().string();
      const auto want = one_by_one(alone, t, schedule_of(seed, there), there, got.cancelled);
      ASSERT_EQ(got.of[t], want) << "seed " << seed;
      operations += static_cast<int>(want.size());
      for (const std::string& text : want) errors += text.starts_with("engine:") ? 1 : 0;
    }
    heard += got.num_heard;
    pinned += got.num_pinned;
  }
  EXPECT_GT(operations, 20 * static_cast<int>(kSchedules));
  EXPECT_LT(errors, operations / 2);
  EXPECT_GT(heard, 3 * kSchedules);
  EXPECT_GT(pinned, kSchedules / 8);
}

}  // namespace
}  // namespace twinkle::engine
