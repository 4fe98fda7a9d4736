#include "twinkle/lora/per_expert.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "twinkle/base/error_for_test.h"
#include "twinkle/lora/expert_factors.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::lora {
namespace {

using Names = std::vector<std::string>;

constexpr int64_t kExperts = 3, kWidth = 48, kInner = 10, kRank = 4;
const std::string kRouted = "model.layers.1.mlp.experts";

// A model whose first layer is dense, if `dense`.
JsonObject routed_config(bool dense) {
  JsonObject c = model::tiny_config("qwen3_moe");
  c["num_experts"] = kExperts;
  c["num_experts_per_tok"] = 2;
  c["moe_intermediate_size"] = kInner;
  if (dense) c["mlp_only_layers"] = JsonArray{0};
  return c;
}

// With an output from the start.
struct Drawn : Adapter {
  Drawn(const PeftConfig& config, const std::vector<model::NamedLinear>& linears)
      : Adapter(config, linears, 1) {
    for (const size_t i : held()) value(i).normal_(0, 0.3);
  }
};

class PerExpertTest : public testing::TestWithParam<bool> {
 protected:
  PerExpertTest()
      : decoder_(model::read_spec(routed_config(GetParam())), Checkpoint::open(model_.path()),
                 at::kFloat),
        shapes_(shapes_of(decoder_.linears())) {
    at::manual_seed(3);
  }

  Drawn adapter(const PeftConfig& config) { return {config, decoder_.linears()}; }
  SavedAdapter read_back() const { return read_adapter(scratch_.path(), shapes_); }

  const model::TinyModel model_{routed_config(GetParam())};
  const ScratchDir scratch_;
  model::Decoder decoder_;
  const std::vector<LinearShape> shapes_;
};

INSTANTIATE_TEST_SUITE_P(WithADenseLayerOrWithout, PerExpertTest, testing::Bool());

PeftConfig stacks() {
  return {.rank = kRank,
          .alpha = 6,
          .target_modules = Names{"q_proj"},
          .target_parameters = {"mlp.experts.gate_up_proj", "down_proj"},
          .rank_pattern = {{R"(.*\.gate_up_proj)", 5}},
          .alpha_pattern = {{R"(mlp\.experts\.down_proj)", 2.5}}};
}

TEST_P(PerExpertTest, StacksAreWrittenForEachExpertAsTheSameFactorsAndScales) {
  const Drawn from = adapter(stacks());
  const auto [config, entries] = per_expert(from, shapes_);
  EXPECT_TRUE(config.target_parameters.empty());
  write_peft(scratch_.path(), config, entries);
  const SavedAdapter saved = read_back();
  std::map<std::string, const SavedAdapter::Module*> modules;
  for (const auto& module : saved.modules) modules[module.path] = &module;
  const Sizes before(from.config()), after(saved.config);
  size_t count = 0;
  const auto expect = [&](const std::string& path, const Factors& of, const at::Tensor& b) {
    ASSERT_TRUE(modules.contains(path)) << path;
    EXPECT_TRUE(at::equal(modules[path]->a, of.f.a)) << path;
    EXPECT_TRUE(at::equal(modules[path]->b, b)) << path;
    EXPECT_EQ(after.rank(path), of.f.a.size(0)) << path;
    EXPECT_EQ(after.scale(path), before.scale(of.path)) << path;
    ++count;
  };
  for (const Factors& of : from.factors()) {
    const std::string stem = of.path.substr(0, of.path.rfind('.') + 1);
    if (!of.path.ends_with("gate_up_proj")) {
      expect(of.path, of, of.f.b);
      continue;
    }
    expect(stem + "gate_proj", of, of.f.b.narrow(0, 0, kInner));
    expect(stem + "up_proj", of, of.f.b.narrow(0, kInner, kInner));
  }
  EXPECT_EQ(saved.modules.size(), count);
  EXPECT_NE(error_of([&] {
              read_adapter(scratch_.path(), shapes_, {}, &from.config());
            }).find("experts.0.gate_proj, a pair for gate_proj and one for up_proj"),
            std::string::npos);
}

// families.md's table of forms: "...mlp.experts.E.gate_proj.lora_A.weight".
TEST_P(PerExpertTest, KeysAreThoseOfEachExpertsLinears) {
  const auto [config, entries] = per_expert(adapter(stacks()), shapes_);
  write_peft(scratch_.path(), config, entries);
  const SafetensorsFile file(scratch_ / "adapter_model.safetensors");
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const StoredTensor& tensor : file.tensors()) shapes[tensor.name] = tensor.shape;
  for (int e = 0; e < kExperts; ++e) {
    const std::string stem = "base_model.model." + kRouted + "." + std::to_string(e) + ".";
    for (const char* name : {"gate_proj", "up_proj"}) {
      EXPECT_EQ(shapes[stem + name + ".lora_A.weight"], (std::vector<int64_t>{5, kWidth}));
      EXPECT_EQ(shapes[stem + name + ".lora_B.weight"], (std::vector<int64_t>{kInner, 5}));
    }
    EXPECT_EQ(shapes[stem + "down_proj.lora_A.weight"], (std::vector<int64_t>{kRank, kInner}));
    EXPECT_EQ(shapes[stem + "down_proj.lora_B.weight"], (std::vector<int64_t>{kWidth, kRank}));
  }
  for (const auto& [name, shape] : shapes) EXPECT_EQ(shape.size(), 2u) << name;
}

// Targets by names that are theirs, too, expressions and single experts.
TEST_P(PerExpertTest, RanksAndScalesOfAllPatternsStayUnderEitherNames) {
  const auto with = [](std::variant<Names, std::string> modules) {
    return PeftConfig{.rank = kRank, .alpha = 6, .target_modules = std::move(modules)};
  };
  std::vector<PeftConfig> configs(4, with(Names{"q_proj", "gate_proj", "up_proj", "down_proj"}));
  configs[0].rank_pattern = {{"w2", 2}, {"layers.1.mlp.*", 3}};
  configs[0].alpha_pattern = {{"w2", 64}, {"(gate|up)_proj", 3}};
  configs[1].rank_pattern = {{R"(experts\.1\.gate_proj)", 2}};
  configs[1].rank_pattern.emplace_back("experts.w1", 5);
  configs[1].alpha_pattern = {{R"(.*\.up_proj)", 1}, {"experts.w2", 64}};
  configs[2].target_modules = R"(.*(q_proj|experts\.\d+\.(gate_proj|up_proj)))";
  configs[3].rank_pattern = {{R"(experts\.1\.down_proj)", 2}, {"experts.down_proj", 3}};
  configs[3].alpha_pattern = {{R"(mlp\.experts\.gate_up_proj)", 2}, {"down_proj", 2}, {"w2", 64}};
  configs.push_back(stacks());
  configs[4].alpha_pattern.emplace_back(R"(experts\.1\.gate_proj)", 64);
  configs[4].rank_pattern.emplace_back(R"(experts\.2\.up_proj)", 2);
  for (const PeftConfig& config : configs) {
    const Drawn from = adapter(config);
    std::map<std::string, const Factors*> factors;
    for (const Factors& of : from.factors()) factors[of.path] = &of;
    for (const bool mixtrals : {false, true}) {
      if (mixtrals && GetParam()) continue;  // it has no dense layers
      auto [written, entries] = per_expert(from, shapes_);
      if (mixtrals) give_mixtrals_names(written, entries);
      // As peft looks for them in the file: the first pattern of a module's own path.
      const PeftConfig kept = peft_config(json_of(written), "written");
      const Sizes told(kept, Sizes::By::kOwn);
      write_peft(scratch_.path(), written, entries);
      const SavedAdapter saved = read_back();
      EXPECT_EQ(saved.modules.size(), entries.size());
      const Sizes after(saved.config);
      for (const auto& module : saved.modules) {
        const auto expert = expert_path(module.path);
        auto of = factors.find(module.path);
        if (of == factors.end())
          of = factors.find(module.path.substr(0, module.path.rfind('.')) + ".gate_up_proj");
        ASSERT_NE(of, factors.end()) << module.path;
        const int64_t rank = of->second->f.a.size(0);
        std::string theirs = module.path;
        if (mixtrals && expert) to_mixtrals_name(theirs);
        EXPECT_EQ(module.a.size(0), rank) << module.path;
        EXPECT_EQ(after.scale(module.path), of->second->f.scale) << module.path;
        EXPECT_EQ(told.rank(theirs), rank) << theirs;
        EXPECT_EQ(told.scale(theirs), of->second->f.scale) << theirs;
      }
    }
  }
}

// A dense layer has linears of the same last names, which the adapter has nothing for.
TEST_P(PerExpertTest, TheConfigNamesNoModuleMoreThanTheStacks) {
  const auto config = per_expert(adapter(stacks()), shapes_).config;
  const auto names = std::get<Names>(config.target_modules);
  if (GetParam()) {
    EXPECT_EQ(names.size(), 1 + 3 * static_cast<size_t>(kExperts));
    EXPECT_EQ(std::ranges::count(names, "mlp.experts.2.up_proj"), 1);
    EXPECT_EQ(std::ranges::count(names, "experts.0.down_proj"), 1);
  } else {
    EXPECT_EQ(names, (Names{"q_proj", "down_proj", "gate_proj", "up_proj"}));
  }
  PeftConfig matching = stacks();
  matching.target_modules = std::string(R"(.*q_proj)");
  const auto listed = std::get<Names>(per_expert(adapter(matching), shapes_).config.target_modules);
  EXPECT_EQ(listed[0], "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(listed[1], "model.layers.1.self_attn.q_proj");
}

PeftConfig sharing() {
  PeftConfig out{.rank = kRank, .alpha = 6, .target_modules = "all-linear"};
  out.share_expert_factors = true;
  return out;
}

// As Tinker's downloads have it, with factors of q_proj.
std::map<std::string, at::Tensor> tinkers(int64_t shared) {
  const auto drawn = [](int64_t count, int64_t rows, int64_t columns) {
    return at::randn({count, rows, columns});
  };
  const std::string stem = "base_model.model." + kRouted + ".";
  std::map<std::string, at::Tensor> out;
  for (const char* name : {"w1", "w3"}) {
    out[stem + name + ".lora_A.weight"] = drawn(shared, kRank, kWidth);
    out[stem + name + ".lora_B.weight"] = drawn(kExperts, kInner, kRank);
  }
  out[stem + "w2.lora_A.weight"] = drawn(kExperts, kRank, kInner);
  out[stem + "w2.lora_B.weight"] = drawn(shared, kWidth, kRank);
  const std::string q = "base_model.model.model.layers.1.self_attn.q_proj";
  out[q + ".lora_A.weight"] = at::randn({kRank, kWidth});
  out[q + ".lora_B.weight"] = at::randn({kWidth, kRank});
  return out;
}

void write(const std::filesystem::path& folder, const std::map<std::string, at::Tensor>& tensors) {
  std::vector<TensorView> views;
  for (const auto& [name, t] : tensors) views.push_back(model::view_of(name, t));
  write_safetensors(folder / "adapter_model.safetensors", views);
  write_text(folder / "adapter_config.json",
             R"json({"peft_type": "LORA", "r": 4, "lora_alpha": 6, "target_modules":
                 ".*layers\\.1\\.(self_attn\\.q_proj|mlp\\.experts\\.\\d+\\.(gate|up|down)_proj)"
})json");
}

TEST_P(PerExpertTest, TinkersFactorsAreReadAsOnesThatExpertsShareAndComeBackBitForBit) {
  const auto tensors = tinkers(1);
  write(scratch_.path(), tensors);
  int64_t reserved = 0;
  const SavedAdapter saved =
      read_adapter(scratch_.path(), shapes_, [&](int64_t bytes) { reserved = bytes; });
  Adapter mine(saved.config, decoder_.linears(), 1);
  mine.load(saved);
  int64_t numbers = 0;
  for (const auto& [name, t] : tensors) numbers += t.numel();
  EXPECT_EQ(mine.num_parameters(), numbers);
  EXPECT_EQ(reserved, 4 * numbers);
  for (const Factors& of : mine.factors()) {
    const auto expert = expert_path(of.path);
    if (!expert) continue;
    const bool down = expert->name == "down_proj";
    const std::string stem = "base_model.model." + kRouted +
                             (down                        ? ".w2"
                              : expert->name == "up_proj" ? ".w3"
                                                          : ".w1");
    const at::Tensor a = tensors.at(stem + ".lora_A.weight"),
                     b = tensors.at(stem + ".lora_B.weight");
    const int64_t e = expert->expert;
    EXPECT_TRUE(at::equal(of.f.a, a[down ? e : 0])) << of.path;
    EXPECT_TRUE(at::equal(of.f.b, b[down ? 0 : e])) << of.path;
  }
  const ScratchDir again;
  write_peft(again.path(), mine.config(), mine.entries());
  const SafetensorsFile file(again / "adapter_model.safetensors");
  EXPECT_EQ(file.tensors().size(), tensors.size());
  for (const StoredTensor& tensor : file.tensors())
    EXPECT_TRUE(at::equal(model::to_float32(tensor), tensors.at(tensor.name))) << tensor.name;
  EXPECT_EQ(read_adapter(again.path(), shapes_).config, mine.config());
}

TEST_P(PerExpertTest, SharedFactorsAreWrittenForEachExpertOnRequest) {
  const Drawn from = adapter(sharing());
  const auto [config, entries] = per_expert(from, shapes_);
  EXPECT_FALSE(config.share_expert_factors);
  write_peft(scratch_.path(), config, entries);
  const SavedAdapter saved = read_back();
  ASSERT_EQ(saved.modules.size(), from.factors().size());
  for (size_t i = 0; i < saved.modules.size(); ++i) {
    EXPECT_TRUE(at::equal(saved.modules[i].a, from.factors()[i].f.a)) << saved.modules[i].path;
    EXPECT_TRUE(at::equal(saved.modules[i].b, from.factors()[i].f.b)) << saved.modules[i].path;
  }
}

TEST_P(PerExpertTest, TinkersFactorsOfEachExpertAreFactorsOfItsOwn) {
  const auto tensors = tinkers(kExperts);
  write(scratch_.path(), tensors);
  const SavedAdapter saved = read_back();
  EXPECT_FALSE(saved.config.share_expert_factors);
  const Adapter mine(saved.config, decoder_.linears(), 1);
  EXPECT_EQ(mine.held().size(), 2 * saved.modules.size());
  const auto up = std::ranges::find(saved.modules, kRouted + ".2.up_proj",
                                    [](const auto& module) { return module.path; });
  ASSERT_NE(up, saved.modules.end());
  EXPECT_TRUE(at::equal(up->a, tensors.at("base_model.model." + kRouted + ".w3.lora_A.weight")[2]));
}

TEST_P(PerExpertTest, TinkersFactorsThatDoNotFitAreRefused) {
  const std::string where = "lora: " + scratch_.path().string() + ": ";
  const auto refused = [&](const char* key, const at::Tensor& value) {
    auto tensors = tinkers(1);
    tensors["base_model.model." + kRouted + key] = value;
    write(scratch_.path(), tensors);
    return error_of([&] { read_back(); });
  };
  EXPECT_EQ(refused(".w3.lora_A.weight", at::ones({kExperts, kRank, kWidth})),
            where + kRouted +
                ".w3 has lora_A [3, 4, 48] and lora_B [3, 10, 4], this model's 3 experts, which "
                "share factors, have [1, 4, 48] and [3, 10, 4]: is it of another base model?");
  EXPECT_EQ(refused(".w2.lora_A.weight", at::ones({kExperts + 1, kRank, kInner})),
            where + kRouted +
                ".w2 has lora_A [4, 4, 10] and lora_B [1, 48, 4], this model's 3 experts, which "
                "share factors, have [3, 4, 10] and [1, 48, 4]: is it of another base model?");
  EXPECT_NE(refused(".w1.lora_B.weight", at::ones({kInner, kRank}))
                .find("lora_B.weight has the shape [10, 4], it must be [experts or 1, out, r] with "
                      "r = 4"),
            std::string::npos);
  const Drawn own = adapter({.rank = kRank, .alpha = 6, .target_modules = "all-linear"});
  write_peft(scratch_.path(), own.config(), own.entries());
  const PeftConfig target = sharing();
  EXPECT_EQ(error_of([&] { read_adapter(scratch_.path(), shapes_, {}, &target); }),
            where +
                "experts of the saved adapter have factors each, of this one share factors: create "
                "it with share_expert_factors false");
}

TEST_P(PerExpertTest, WhatCannotBeSharedIsRefused) {
  PeftConfig config = sharing();
  config.target_modules = Names{"q_proj"};
  EXPECT_EQ(error_of([&] { adapter(config); }),
            "lora: share_expert_factors is true, but no module of an expert is targeted; leave it "
            "out, or name gate_proj, up_proj and down_proj of a model with experts");
  config.target_modules = Names{"gate_up_proj"};
  EXPECT_EQ(error_of([&] { adapter(config); }).find("lora: the adapter targets model.layers."), 0u);
  config = sharing();
  config.target_modules = R"(.*\.experts\.[01]\.down_proj)";
  EXPECT_NE(
      error_of([&] { adapter(config); }).find(".mlp.experts.down_proj are targeted, it takes"),
      std::string::npos);
  config = sharing();
  config.rank_pattern = {{R"(experts\.1\.up_proj)", 2}};
  EXPECT_NE(error_of([&] {
              adapter(config);
            }).find(".1.up_proj has 2, but experts that share factors have one"),
            std::string::npos);
}

TEST_P(PerExpertTest, AFusedModuleOfAnExpertHasNoSuchForm) {
  const Drawn mine = adapter({.rank = kRank, .alpha = 6, .target_modules = Names{"gate_up_proj"}});
  EXPECT_EQ(error_of([&] {
              per_expert(mine, shapes_);
            }).find("lora: expert_format is 'per_expert', but the adapter has model.layers."),
            0u);
}

TEST_P(PerExpertTest, ForksShareAmongTheirExpertsAndGradientsJoinTheFirstOnes) {
  Drawn mine = adapter(sharing());
  mine.make_grads();
  for (size_t i = 0; i < 2 * mine.factors().size(); ++i) mine.grad(i).fill_(static_cast<double>(i));
  const std::unique_ptr<Adapter> fork = mine.fork();
  const std::vector<size_t> held = fork->held();
  for (size_t i = 0; i < 2 * fork->factors().size(); ++i) {
    EXPECT_TRUE(at::equal(fork->value(i), mine.value(i)));
    EXPECT_FALSE(fork->value(i).is_same(mine.value(i)));
  }
  fork->join_shared_grads();
  for (size_t i = 0; i < 2 * fork->factors().size(); ++i) {
    double sum = 0;  // gradients of all that share the tensor
    for (size_t k = 0; k < 2 * fork->factors().size(); ++k)
      if (fork->value(k).is_same(fork->value(i))) sum += static_cast<double>(k);
    EXPECT_EQ(fork->grad(i).defined(), fork->holds(i)) << i;
    if (!fork->holds(i)) continue;
    EXPECT_EQ(fork->grad(i).mean().item<double>(), sum) << i;
  }
}

// gpt-oss's, whose gates and ups take turns in a stack's rows.
TEST(PerExpertOfTurnedStacks, HasEveryOtherRowOfB) {
  JsonObject c = model::tiny_config("gpt_oss");
  c["num_local_experts"] = kExperts;
  c["num_experts_per_tok"] = 2;
  const model::TinyModel model(c);
  model::Decoder decoder(model::read_spec(c), Checkpoint::open(model.path()), at::kFloat);
  const auto shapes = shapes_of(decoder.linears());
  const Drawn from(stacks(), decoder.linears());
  std::map<std::string, at::Tensor> of_stacks;
  for (const Factors& factors : from.factors()) of_stacks[factors.path] = factors.f.b;
  const ScratchDir scratch;
  const auto [config, entries] = per_expert(from, shapes);
  write_peft(scratch.path(), config, entries);
  std::map<std::string, at::Tensor> each;
  for (const auto& module : read_adapter(scratch.path(), shapes).modules)
    each[module.path] = module.b;
  const std::string stem = kRouted + ".2.";
  const at::Tensor& both = of_stacks.at(stem + "gate_up_proj");
  EXPECT_TRUE(at::equal(each.at(stem + "gate_proj"), both.slice(0, 0, both.size(0), 2)));
  EXPECT_TRUE(at::equal(each.at(stem + "up_proj"), both.slice(0, 1, both.size(0), 2)));
  EXPECT_TRUE(at::equal(each.at(stem + "down_proj"), of_stacks.at(stem + "down_proj")));
}

}  // namespace
}  // namespace twinkle::lora
