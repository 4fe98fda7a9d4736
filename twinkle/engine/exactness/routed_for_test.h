// For tests: a tiny model with routed experts in two of its three layers, and engines of it with
// two tenants, "a" and "b".
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "twinkle/engine/operations_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::engine {

inline constexpr int64_t kExperts = 6, kTopK = 2, kRouted = 2;  // layers 0 and 2 of 3

inline JsonObject routed_config(const std::string& family = "qwen3_moe") {
  JsonObject c = model::tiny_config(family);
  c["num_hidden_layers"] = kRouted + 1;
  c["num_experts"] = kExperts;
  c["num_experts_per_tok"] = kTopK;
  c["moe_intermediate_size"] = 20;
  c["norm_topk_prob"] = true;
  c["mlp_only_layers"] = JsonArray{Json(1)};
  return c;
}

inline void create(Engine& engine) {
  for (const std::string name : {"a", "b"})
    engine.run<Done>(
        Create{.tenant = name, .lora_json = R"({"r": 3, "target_modules": "all-linear"})"});
}

class RoutedOnEngine : public testing::Test {
 protected:
  EngineOptions options(int64_t token_budget = 4096, int64_t activation_bytes = 0,
                        const char* precision = "no") const {
    return {.model = {.path = model_.path(),
                      .mixed_precision = precision,
                      .activation_bytes = activation_bytes},
            .scheduling = {.token_budget = token_budget}};
  }
  std::unique_ptr<Engine> engine(int64_t token_budget = 4096, int64_t activation_bytes = 0,
                                 const char* precision = "no") const {
    auto out = std::make_unique<Engine>(options(token_budget, activation_bytes, precision));
    create(*out);
    return out;
  }
  const model::TinyModel model_{routed_config()};
};

}  // namespace twinkle::engine
