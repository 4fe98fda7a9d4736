// Tenants whose adapters work on the head among others whose do not: each has the bits that it has
// alone, whatever fails beside it; and what such an adapter's files may hold.
#include <gtest/gtest.h>

#include <limits>

#include "twinkle/engine/exactness/outcomes_for_test.h"
#include "twinkle/io/peft/peft.h"

namespace twinkle::engine {
namespace {

constexpr size_t kTenants = 5;
using Lines = std::vector<std::string>;

std::string name_of(size_t i) { return "t" + std::to_string(i); }

Create head_created(size_t i) {
  static const std::array<std::string, kTenants> targets{
      R"(["lm_head"])", R"("all-linear")", R"(["q_proj", "lm_head"])", R"(["down_proj"])",
      R"-(".*(up_proj|lm_head)")-"};
  return {.tenant = name_of(i),
          .lora_json = R"({"r": )" + std::to_string(2 + 3 * i) + R"(, "lora_dropout": )" +
                       (i == 2 ? "0.3" : "0.0") + R"(, "target_modules": )" + targets[i] + "}",
          .seed = 7 + i};
}

// The last of them learn through all logits, too.
ForwardBackward to_learn(size_t i, uint64_t key) {
  ForwardBackward op{.tenant = name_of(i)};
  for (uint64_t s = 0; s < 1 + key % 3; ++s) {
    Example e = drawn(key_of(key, s), 1 + key_of(key, s) % 23);
    for (size_t t = 0; t + 1 < e.labels.size(); t += 3) e.labels[t] = -100;
    if (i > 2) op.loss = "LinearLoss";
    if (i > 2 && key % 2) e.extras["grad"].assign(e.labels.size(), -0.05f);
    if (i > 2 && key % 2 == 0) {
      e.labels.clear();
      for (size_t k = 0; k < 131 * e.input_ids.size(); ++k)
        e.logits_grad.push_back(static_cast<float>(0.02 * uniform_at(key, k) - 0.01));
    }
    op.sequences.push_back(std::move(e));
  }
  return op;
}

std::vector<Operation> head_life_of(size_t i) {
  std::vector<Operation> out{head_created(i)};
  for (uint64_t step = 0; step < 4; ++step) {
    const uint64_t key = key_of(11 + i, step);
    out.push_back(to_learn(i, key));
    if (step == 1 && i % 2 == 0) {  // adds nothing
      ForwardBackward bad = to_learn(0, key_of(key, 99));
      bad.tenant = name_of(i);
      for (Example& e : bad.sequences)
        e.weights.assign(e.labels.size(), std::numeric_limits<float>::max());
      out.push_back(std::move(bad));
    }
    out.push_back(to_learn(i, key_of(key, 1)));
    out.push_back(Inspect{.tenant = name_of(i), .tensors = true});
    out.push_back(Step{.tenant = name_of(i), .options = R"({"lr": 0.05})"});
    out.push_back(Forward{
        .tenant = name_of(i), .sequences = {drawn(3, 14)}, .entropy = true, .logits = true});
    Sample sample{.tenant = name_of(i), .prompts = {{3, 1, 4, 1, 5}, {2, 7}}};
    sample.params.assign(2, {.max_tokens = 6,
                             .seed = key,
                             .temperature = 0.9,
                             .top_logprobs = 2,
                             .prompt_logprobs = true});
    out.push_back(std::move(sample));
  }
  return out;
}

class HeadAdapters : public testing::TestWithParam<std::tuple<std::string, bool>> {
 protected:
  static JsonObject config(bool tied) {
    JsonObject c = model::tiny_config();
    c["tie_word_embeddings"] = tied;
    return c;
  }
  EngineOptions options(int64_t budget, int64_t activation_bytes = 0) const {
    return {.model = {.path = model_.path(),
                      .mixed_precision = std::get<0>(GetParam()),
                      .activation_bytes = activation_bytes},
            .scheduling = {.token_budget = budget},
            .sampler = {.kv_tokens = 2048}};
  }
  Lines alone(size_t i, const EngineOptions& o) const {
    Engine engine(o, in_letters);
    Lines out;
    for (const Operation& op : head_life_of(i)) {
      Future future = engine.submit(op);
      out.push_back(outcome_of(future));
    }
    return out;
  }
  const model::TinyModel model_{config(std::get<1>(GetParam()))};
};

INSTANTIATE_TEST_SUITE_P(TiedOrNot, HeadAdapters,
                         testing::Combine(testing::Values("no", "bf16"), testing::Bool()));

TEST_P(HeadAdapters, GiveEachTenantTheBitsThatItHasAlone) {
  std::vector<Lines> got(kTenants);
  {
    Engine engine(options(64), in_letters);
    std::vector<std::vector<Future>> futures(kTenants);
    std::vector<std::vector<Operation>> lives;
    for (size_t i = 0; i < kTenants; ++i) lives.push_back(head_life_of(i));
    for (size_t k = 0;; ++k) {
      bool any = false;
      for (size_t i = 0; i < kTenants; ++i) {
        if (k >= lives[i].size()) continue;
        futures[i].push_back(engine.submit(lives[i][k]));
        any = true;
      }
      if (!any) break;
    }
    for (size_t i = 0; i < kTenants; ++i) {
      for (Future& future : futures[i]) got[i].push_back(outcome_of(future));
    }
  }
  for (size_t i = 0; i < kTenants; ++i) {
    EXPECT_EQ(got[i], alone(i, options(4096))) << i;
    EXPECT_EQ(got[i], alone(i, options(1, 1))) << i << ", a sequence at a time, layers again";
    if (i % 2 == 0) {
      EXPECT_TRUE(std::ranges::any_of(
          got[i], [](const std::string& text) { return text.starts_with("engine: "); }));
    }
  }
}

TEST_P(HeadAdapters, APublishedVersionKeepsItsHead) {
  Engine engine(options(4096), in_letters);
  engine.run<Done>(head_created(0));
  const auto learn = [&] {
    engine.run<ForwardResult>(to_learn(0, 5));
    engine.run<StepResult>(Step{.tenant = name_of(0), .options = R"({"lr": 0.1})"});
  };
  const auto sampled = [&](int64_t version) {
    Sample op{.tenant = name_of(0), .prompts = {{3, 1, 4}}};
    op.version = version;
    op.params.assign(1, {.max_tokens = 5, .temperature = 0, .prompt_logprobs = true});
    Future future = engine.submit(op);
    return outcome_of(future);
  };
  learn();
  const int64_t version = engine.run<PublishResult>(Publish{name_of(0)}).version;
  const std::string before = sampled(version);
  learn();
  EXPECT_EQ(sampled(version), before);
  EXPECT_NE(sampled(0), before);
}

// Adds to a saved adapter's tensors a copy of the base model's `weight`.
void add_copy(const std::filesystem::path& dir, const std::string& key, const at::Tensor& weight) {
  const auto file = dir / "adapter_model.safetensors";
  std::vector<TensorView> views;
  const SafetensorsFile saved(file);
  for (const StoredTensor& tensor : saved.tensors()) views.push_back(tensor.load());
  views.push_back(model::view_of(key, weight));
  write_safetensors(file, views);
}

TEST_P(HeadAdapters, ASavedOneComesBackAndACopyOfTheBaseWithItMustBeEqual) {
  const ScratchDir scratch;
  const auto dir = scratch.path() / "saved";
  Engine engine(options(4096), in_letters);
  engine.run<Done>(head_created(2));
  engine.run<ForwardResult>(to_learn(2, 5));
  engine.run<StepResult>(Step{.tenant = name_of(2), .options = R"({"lr": 0.1})"});
  engine.run<SaveResult>(Save{.tenant = name_of(2), .directory = dir.string()});
  const PeftAdapter files = read_peft(dir);
  EXPECT_EQ(files.entries.front().module, "lm_head");
  EXPECT_TRUE(files.base_weights.empty());
  const auto state = [&](const std::string& tenant) {
    return engine.run<InspectResult>(Inspect{tenant}).weights;
  };
  const auto create = [&](const std::string& tenant) {
    Future future = engine.submit(Create{.tenant = tenant, .directory = dir.string()});
    return outcome_of(future);
  };
  ASSERT_EQ(create("again"), "done");
  EXPECT_EQ(state("again"), state(name_of(2)));

  const bool tied = std::get<1>(GetParam());
  const auto weights = model::tiny_weights(config(tied));
  const at::Tensor head = weights.at(tied ? "model.embed_tokens.weight" : "lm_head.weight");
  add_copy(dir, "base_model.model.lm_head.base_layer.weight", head);
  add_copy(dir, "base_model.model.model.embed_tokens.weight",
           weights.at("model.embed_tokens.weight").to(at::kBFloat16));
  ASSERT_EQ(create("with copies"), "done");
  EXPECT_EQ(state("with copies"), state(name_of(2)));

  for (const std::string name : {"lm_head.weight", "model.embed_tokens.weight"}) {
    at::Tensor other = (name == "lm_head.weight" ? head : weights.at(name)).clone();
    other[130][47] += 0.25;
    engine.run<SaveResult>(Save{.tenant = name_of(2), .directory = dir.string()});
    add_copy(dir, "base_model.model." + name, other);
    EXPECT_EQ(create("trained"),
              "lora: " + dir.string() + ": tensor 'base_model.model." + name +
                  "' is not this base model's " + name +
                  ": it is of another base model, or was trained or resized; only LoRA's factors "
                  "are loaded, save the adapter with save_embedding_layers=False");
  }
}

TEST(HeadAdaptersOf, AValueHeadAreRefused) {
  const model::TinyModel model;
  Engine engine({.model = {.path = model.path(), .value_head = true}});
  const std::string error = error_of([&] {
    engine.run<Done>(
        Create{.tenant = "me", .lora_json = R"({"r": 2, "target_modules": ["lm_head"]})"});
  });
  EXPECT_EQ(error,
            "engine: tenant 'me' is an adapter, which has no value head; of a model "
            "with one all weights are trained");
}

}  // namespace
}  // namespace twinkle::engine
