#include "twinkle/lora/peft/form.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>

#include "twinkle/base/error_for_test.h"
#include "twinkle/base/file.h"
#include "twinkle/lora/adapter.h"
#include "twinkle/lora/peft/names.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::lora {
namespace {

using Names = std::vector<std::string>;

constexpr int64_t kFormExperts = 3;

// Two layers, of which the first is dense.
JsonObject config_of_model() {
  JsonObject c = model::tiny_config("qwen3_moe");
  c["num_experts"] = kFormExperts;
  c["num_experts_per_tok"] = 2;
  c["moe_intermediate_size"] = 10;
  c["mlp_only_layers"] = JsonArray{0};
  return c;
}

// With an output from the start.
struct DrawnForm : Adapter {
  DrawnForm(const PeftConfig& config, const std::vector<model::NamedLinear>& linears)
      : Adapter(config, linears, 1) {
    for (const size_t i : held()) value(i).normal_(0, 0.3);
  }
};

class PeftFormTest : public testing::Test {
 protected:
  PeftFormTest()
      : decoder_(model::read_spec(config_of_model()), Checkpoint::open(model_.path()), at::kFloat),
        shapes_(shapes_of(decoder_.linears())) {
    at::manual_seed(3);
  }

  DrawnForm drawn(const PeftConfig& config) { return {config, decoder_.linears()}; }
  PeftForm write(const Adapter& adapter, bool with_own = true) {
    PeftForm form = peft_form(adapter.config(), shapes_);
    EXPECT_FALSE(form.is_own);
    EXPECT_EQ(form.missing, "");
    const auto entries = peft_entries(adapter, form, shapes_);
    write_peft(scratch_.path(), form.config, entries, with_own ? &adapter.config() : nullptr);
    return form;
  }
  SavedAdapter read() const { return read_adapter(scratch_.path(), shapes_); }
  std::string refused(const std::function<void()>& change) {
    change();
    return invalid_of([&] { read(); });
  }

  static std::map<std::string, at::Tensor> tensors_of(const SavedAdapter& saved) {
    std::map<std::string, at::Tensor> out;
    for (const auto& module : saved.modules) {
      out[kinds_of({})[0].name(module.path)] = module.a;
      out[kinds_of({})[1].name(module.path)] = module.b;
    }
    return out;
  }
  void expect_the_same(const Adapter& adapter, const SavedAdapter& saved) const {
    EXPECT_EQ(saved.config, adapter.config());
    const auto tensors = tensors_of(saved);
    EXPECT_EQ(tensors.size(), 2 * adapter.factors().size());
    for (const Factors& factors : adapter.factors()) {
      EXPECT_TRUE(at::equal(tensors.at(kinds_of({})[0].name(factors.path)), factors.f.a))
          << factors.path;
      EXPECT_TRUE(at::equal(tensors.at(kinds_of({})[1].name(factors.path)), factors.f.b))
          << factors.path;
    }
  }
  // scale B A of each of the model's matrices, halves of gate_up_proj one below the other.
  std::map<std::string, at::Tensor> products(const PeftConfig& config, const SavedAdapter& saved) {
    const Sizes sizes(config);
    std::map<std::string, at::Tensor> out;
    for (const auto& module : saved.modules) {
      std::string path = module.path;
      at::Tensor product = module.b.matmul(module.a).mul(sizes.scale(path));
      const auto expert = expert_path(path);
      if (expert && expert->name != "down_proj") {
        path = path.substr(0, path.rfind('.')) + ".gate_up_proj";
        const at::Tensor zeros = at::zeros_like(product);
        if (expert->name == "gate_proj") product = at::cat({product, zeros});
        if (expert->name == "up_proj") product = at::cat({zeros, product});
      }
      out[path] = out.contains(path) ? out[path] + product : product;
    }
    return out;
  }

  const model::TinyModel model_{config_of_model()};
  const ScratchDir scratch_;
  model::Decoder decoder_;
  const std::vector<LinearShape> shapes_;
};

PeftConfig on(std::variant<Names, std::string> modules) {
  PeftConfig out{.rank = 3, .alpha = 5};
  out.target_modules = std::move(modules);
  return out;
}

TEST(ShortestNames, AreNoOthersToo) {
  const Names paths{"a.0.up", "a.1.up", "a.1.b.up"}, others{"a.0.b.up", "a.0.down"};
  EXPECT_EQ(shortest_names(paths, others), (Names{"0.up", "1.up", "1.b.up"}));
  EXPECT_EQ(shortest_names(paths, {}), (Names{"up"}));
  EXPECT_EQ(shortest_names(paths, {}, 2), (Names{"0.up", "1.up", "b.up"}));
  EXPECT_EQ(shortest_names(Names{"lm_head"}, others, 3), (Names{"lm_head"}));
}

TEST_F(PeftFormTest, ExpertsAreStacksAndWhatIsCalledAsTheyAreIsAParameter) {
  const PeftForm form = write(drawn(on("all-linear")));
  EXPECT_EQ(std::get<Names>(form.config.target_modules),
            (Names{"q_proj", "k_proj", "v_proj", "o_proj"}));
  EXPECT_EQ(form.config.target_parameters,
            (Names{"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight",
                   "mlp.experts.down_proj", "mlp.experts.gate_up_proj"}));
  using Ranks = std::vector<std::pair<std::string, int64_t>>;
  using Alphas = std::vector<std::pair<std::string, double>>;
  EXPECT_EQ(form.config.rank_pattern, (Ranks{{"gate_up_proj", 6}}));
  EXPECT_EQ(form.config.alpha_pattern, (Alphas{{"gate_up_proj", 10.0}}));
  std::map<std::string, std::vector<int64_t>> shapes;
  const SafetensorsFile file(scratch_ / "adapter_model.safetensors");
  for (const StoredTensor& t : file.tensors()) shapes[t.name] = t.shape;
  const std::string stem = "base_model.model.model.layers.1.mlp.experts.";
  EXPECT_EQ(shapes.at(stem + "base_layer.lora_A.weight")[0], 6 * kFormExperts);
  EXPECT_EQ(shapes.at(stem + "base_layer.lora_B.weight"),
            (std::vector<int64_t>{20, 6 * kFormExperts}));
  EXPECT_EQ(shapes.at(stem + "lora_A.weight"), (std::vector<int64_t>{3 * kFormExperts, 10}));
  EXPECT_EQ(shapes.at("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight")[0], 3);
}

TEST_F(PeftFormTest, ReadBackItIsTheAdapterBitForBit) {
  PeftConfig odd = on(Names{"gate_proj", "up_proj", "layers.0.mlp.down_proj", "v_proj"});
  odd.use_rslora = true;
  odd.dropout = 0.25;
  odd.rank_pattern = {{"v_proj", 5}, {"layers.0.mlp.gate_proj", 7}};
  odd.alpha_pattern = {{"layers.1.mlp.experts.*", 2.3}};
  PeftConfig shifted = on("all-linear");  // scales 1, 1/2 and 2 among those of a stack
  shifted.rank_pattern = {{"experts.*.up_proj", 6}, {"gate_proj", 12}};
  shifted.alpha_pattern = {{"gate_proj", 5.0}};
  for (const PeftConfig& config :
       {on("all-linear"), odd, shifted, on(Names{"up_proj"}), on(Names{"gate_up_proj"}),
        on(Names{"experts.1.down_proj", "experts.1.gate_proj", "experts.0.up_proj"}),
        on(R"(.*(layers\.0\.self_attn\.q_proj|experts\..*\.down_proj))")}) {
    const DrawnForm adapter = drawn(config);
    write(adapter);
    expect_the_same(adapter, read());
  }
}

// As after peft has saved it again.
TEST_F(PeftFormTest, WithoutTheOwnConfigItIsWhatPeftReads) {
  PeftConfig config = on("all-linear");
  config.rank_pattern = {{"up_proj", 6}, {"layers.0.mlp.down_proj", 2}};
  const DrawnForm adapter = drawn(config);
  write(adapter);
  const auto want = products(adapter.config(), read());
  write(adapter, false);
  const SavedAdapter saved = read();
  EXPECT_EQ(saved.config.target_parameters,
            (Names{"mlp.experts.down_proj", "mlp.experts.gate_up_proj"}));
  const Adapter again(saved.config, decoder_.linears(), 1);  // by no laxer rule
  again.check(saved);
  const auto got = products(saved.config, saved);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [path, product] : want)
    EXPECT_TRUE(at::allclose(got.at(path), product, 1e-6, 1e-6)) << path;
}

TEST_F(PeftFormTest, AConfigThatWasChangedSinceCounts) {
  const DrawnForm adapter = drawn(on("all-linear"));
  PeftForm form = write(adapter);
  form.config.alpha = 7;
  write_peft(scratch_.path(), form.config, peft_entries(adapter, form, shapes_), &adapter.config());
  const SavedAdapter saved = read();
  EXPECT_EQ(saved.config.alpha, 7);
  EXPECT_EQ(saved.config.target_parameters.size(), 2u);
}

TEST_F(PeftFormTest, FactorsThatWereChangedSinceAreNotTakenApart) {
  const DrawnForm adapter = drawn(on("all-linear"));
  const PeftForm form = write(adapter);
  auto entries = peft_entries(adapter, form, shapes_);
  at::Tensor ones;
  for (PeftEntry& entry : entries) {
    if (!entry.module.ends_with("base_layer")) continue;
    ones = at::ones({entry.b.shape[0], entry.b.shape[1]});
    entry.b = model::view_of("", ones);
  }
  EXPECT_NE(refused([&] {
              write_peft(scratch_.path(), form.config, entries, &adapter.config());
            }).find("has numbers where the adapter that was saved has none"),
            std::string::npos);
}

TEST_F(PeftFormTest, AnExpertsFactorsBesideThoseOfAllAreRefused) {
  const DrawnForm adapter = drawn(on("all-linear"));
  const PeftForm form = write(adapter);
  auto entries = peft_entries(adapter, form, shapes_);
  const auto own = std::ranges::find_if(adapter.factors(), [](const Factors& f) {
    return f.path == "model.layers.1.mlp.experts.0.down_proj";
  });
  entries.push_back({own->path, model::view_of("", own->f.a), model::view_of("", own->f.b)});
  EXPECT_NE(refused([&] {
              write_peft(scratch_.path(), form.config, entries, &adapter.config());
            }).find("experts.0.down_proj twice, of its own and in those of all experts"),
            std::string::npos);
}

TEST_F(PeftFormTest, AnOwnConfigThatDoesNotFitSaysWhereItIs) {
  const DrawnForm adapter = drawn(on("all-linear"));
  const PeftForm form = write(adapter);
  const PeftConfig other = on(Names{"c_attn"});
  const std::string text = refused([&] {
    write_peft(scratch_.path(), form.config, peft_entries(adapter, form, shapes_), &other);
  });
  EXPECT_NE(text.find("target module 'c_attn' matches nothing"), std::string::npos) << text;
  EXPECT_NE(text.find("twinkle_adapter in the metadata of adapter_model.safetensors"),
            std::string::npos);
}

TEST_F(PeftFormTest, WhatPeftSavedAgainIsRefusedByAnAdapterOfEachExpertsLinears) {
  const DrawnForm adapter = drawn(on("all-linear"));
  write(adapter, false);
  EXPECT_NE(invalid_of([&] {
              read_adapter(scratch_.path(), shapes_, {}, &adapter.config());
            }).find("experts.0.gate_up_proj, one pair for gate_proj and up_proj"),
            std::string::npos);
  // With only q_proj that is no help.
  const PeftConfig other = on(Names{"q_proj"});
  EXPECT_EQ(invalid_of([&] {
              read_adapter(scratch_.path(), shapes_, {}, &other);
            }).find("one pair for gate_proj"),
            std::string::npos);
}

TEST_F(PeftFormTest, AModuleTooManyIsNamedBeforeItsRank) {
  PeftConfig two = on(Names{"q_proj", "v_proj"}), one = on(Names{"q_proj"});
  two.rank_pattern = {{"v_proj", 2}};
  const DrawnForm adapter = drawn(two);
  write_peft(scratch_.path(), adapter.config(), adapter.entries());
  EXPECT_NE(invalid_of([&] {
              read_adapter(scratch_.path(), shapes_, {}, &one);
            }).find("has module model.layers.0.self_attn.v_proj, which this model does not have"),
            std::string::npos);
}

// peft looks for a parameter's name alone.
TEST_F(PeftFormTest, AStacksRankAndScaleAreOfItsParametersName) {
  PeftConfig stacks = on(Names{"q_proj"});
  stacks.target_parameters = {"mlp.experts.gate_up_proj", "down_proj"};
  stacks.rank_pattern = {
      {R"(experts\.0\.gate_up_proj)", 2}, {R"(\d+\.down_proj)", 4}, {"down_proj", 6}};
  stacks.alpha_pattern = {{R"(\d+\.gate_up_proj)", 7.0}};
  const DrawnForm adapter = drawn(stacks);
  const Sizes sizes(adapter.config());
  for (const Factors& factors : adapter.factors()) {
    const auto expert = expert_path(factors.path);
    const int64_t rank = expert && expert->name == "down_proj" ? 6 : 3;
    EXPECT_EQ(factors.f.a.size(0), rank) << factors.path;
    EXPECT_EQ(factors.f.scale, 5.0 / static_cast<double>(rank)) << factors.path;
    EXPECT_EQ(sizes.rank(expert ? expert->parameter() : factors.path), rank);
  }
  write_peft(scratch_.path(), adapter.config(), adapter.entries());
  expect_the_same(adapter, read());
  // As peft has kept the patterns.
  write_peft(scratch_.path(), stacks, adapter.entries());
  const SavedAdapter saved = read();
  const Sizes theirs(saved.config);
  for (const auto& module : saved.modules) {
    EXPECT_EQ(theirs.rank(module.path), sizes.rank(module.path)) << module.path;
    EXPECT_EQ(theirs.alpha(module.path), sizes.alpha(module.path)) << module.path;
  }
}

TEST_F(PeftFormTest, WhatPeftReadsAsItIsIsTheAdaptersOwn) {
  PeftConfig stacks = on(Names{"q_proj"});
  stacks.target_parameters = {"mlp.experts.gate_up_proj"};
  for (const PeftConfig& config : {stacks, on(Names{"q_proj", "o_proj"})}) {
    const PeftForm form = peft_form(config, shapes_);
    EXPECT_TRUE(form.is_own);
    EXPECT_EQ(form.config, config);
    EXPECT_EQ(form.missing, "");
  }
}

TEST_F(PeftFormTest, ScalesThatNoStackHasAreNamed) {
  PeftConfig config = on("all-linear");
  config.rank_pattern = {{"up_proj", 4}};
  EXPECT_NE(peft_form(config, shapes_).missing.find("and an up_proj of 1.25"), std::string::npos);
  config.rank_pattern = {{R"(experts\.1\.down_proj)", 4}};
  const PeftForm form = peft_form(config, shapes_);
  EXPECT_NE(form.missing.find("has experts of different ranks or scales"), std::string::npos);
  EXPECT_TRUE(form.is_own);
}

// peft matched no expert with these names: it knows experts as stacks.
class PeftFileTest : public PeftFormTest {
 protected:
  // A file of the adapter's entries, whose config says something else.
  void write_as(const Adapter& adapter, std::variant<Names, std::string> modules,
                Names parameters = {}) {
    PeftConfig config = adapter.config();
    config.target_modules = std::move(modules);
    config.target_parameters = std::move(parameters);
    write_peft(scratch_.path(), config, adapter.entries());
  }
  Names strict(const PeftConfig& config) const {
    Names out;
    for (const size_t i : match_targets(config, shapes_)) out.push_back(shapes_[i].path);
    return out;
  }
};

TEST_F(PeftFileTest, NamesReachExpertsOnlyWhereTheFileHasFactorsOfTheirs) {
  const DrawnForm adapter = drawn(on(Names{"q_proj", "mlp.down_proj"}));
  for (const std::variant<Names, std::string>& modules :
       {std::variant<Names, std::string>(Names{"q_proj", "down_proj"}),
        std::variant<Names, std::string>(R"(.*(q|down)_proj)")}) {
    write_as(adapter, modules);
    const SavedAdapter saved = read();
    EXPECT_EQ(saved.modules.size(), adapter.factors().size());
    EXPECT_EQ(std::get<Names>(saved.config.target_modules), (Names{"mlp.down_proj", "q_proj"}));
    EXPECT_EQ(strict(saved.config), strict(adapter.config()));
  }
  const DrawnForm of_experts = drawn(on(Names{"q_proj", "down_proj"}));
  write_as(of_experts, Names{"q_proj", "down_proj"});
  expect_the_same(of_experts, read());
  write_as(adapter, Names{"q_proj", "down_proj", "o_proj"});  // a linear of none
  EXPECT_NE(invalid_of([&] { read(); }).find("has no module model.layers.0.self_attn.o_proj"),
            std::string::npos);
}

TEST_F(PeftFileTest, StacksGoWithNamesOfTheirLinears) {
  PeftConfig config = on(Names{"q_proj", "mlp.up_proj", "mlp.gate_proj"});
  config.target_parameters = {"mlp.experts.gate_up_proj"};
  const DrawnForm adapter = drawn(config);
  write_as(adapter, Names{"q_proj", "up_proj", "gate_proj"}, {"mlp.experts.gate_up_proj"});
  const SavedAdapter saved = read();
  EXPECT_EQ(strict(saved.config), strict(adapter.config()));
  EXPECT_EQ(saved.modules.size(), adapter.factors().size());
  // The user's own config is taken at its word.
  config.target_modules = Names{"q_proj", "up_proj"};
  EXPECT_NE(invalid_of([&] { match_targets(config, shapes_); }).find("leave one of them out"),
            std::string::npos);
}

TEST_F(PeftFileTest, NamesThatMatchNothingArePassedOverUnlessAllAreSuch) {
  const DrawnForm adapter = drawn(on(Names{"q_proj"}));
  write_as(adapter, Names{"q_proj", "c_attn"});
  EXPECT_EQ(read().config.target_modules, adapter.config().target_modules);
  write_as(adapter, Names{"c_attn"});
  EXPECT_NE(invalid_of([&] { read(); }).find("target module 'c_attn' matches nothing"),
            std::string::npos);
}

TEST_F(PeftFileTest, ALinearsWeightAmongTheParametersIsTheLinearWithThatNamesRank) {
  PeftConfig config = on(Names{"q_proj", "mlp.down_proj"});
  config.rank_pattern = {{"mlp.down_proj", 2}};
  config.alpha_pattern = {{"mlp.down_proj", 9}};
  const DrawnForm adapter = drawn(config);
  config = adapter.config();
  config.target_modules = Names{"q_proj"};
  config.target_parameters = {"mlp.down_proj.weight"};
  config.rank_pattern = {{"down_proj.weight", 2}};
  config.alpha_pattern = {{"down_proj.weight", 9}};
  write_peft(scratch_.path(), config, adapter.entries());
  const SavedAdapter saved = read();
  adapter.check(saved);
  EXPECT_EQ(strict(saved.config), strict(adapter.config()));
}

TEST_F(PeftFileTest, ARouterIsRefusedWithWhatToDo) {
  const DrawnForm adapter = drawn(on(Names{"q_proj"}));
  auto entries = adapter.entries();
  const at::Tensor a = at::ones({3, 48}), b = at::ones({kFormExperts, 3});
  entries.push_back({"model.layers.1.mlp.gate", model::view_of("", a), model::view_of("", b)});
  PeftConfig config = adapter.config();
  config.target_parameters = {"gate.weight"};
  write_peft(scratch_.path(), config, entries);
  const std::string text = invalid_of([&] { read(); });
  EXPECT_NE(text.find("has module model.layers.1.mlp.gate, a router"), std::string::npos) << text;
  EXPECT_NE(text.find("a list of names in target_modules"), std::string::npos) << text;
}

}  // namespace
}  // namespace twinkle::lora
