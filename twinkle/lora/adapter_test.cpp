#include "twinkle/lora/adapter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "twinkle/io/peft/peft.h"
#include "twinkle/lora/targets.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::lora {
namespace {

using Names = std::vector<std::string>;

// Keeps the warnings that come while it lives.
class Warnings : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { texts_.push_back(warning.msg()); }
  const Names& texts() const { return texts_; }

 private:
  Names texts_;
  const c10::WarningUtils::WarningHandlerGuard guard_{this};
};

class AdapterTest : public testing::Test {
 protected:
  AdapterTest()
      : decoder_(model::read_spec(model::tiny_config()), Checkpoint::open(directory_.path()),
                 at::kFloat),
        linears_(decoder_.linears()) {}

  Names targets(std::variant<Names, std::string> modules) {
    PeftConfig config;
    config.target_modules = std::move(modules);
    Names out;
    for (const size_t i : match_targets(config, shapes_of(linears_)))
      out.push_back(linears_[i].path);
    return out;
  }

  static PeftConfig config(Names modules = {"q_proj", "down_proj"}) {
    return {.rank = 3, .alpha = 6, .target_modules = std::move(modules)};
  }

  // The files of a saved adapter, as load() sees them.
  SavedAdapter saved(Adapter& adapter) {
    write_peft(scratch_.path(), adapter.config(), adapter.entries());
    return read_adapter(scratch_.path(), shapes_of(linears_));
  }

  static std::vector<at::Tensor> values(const Adapter& adapter) {
    std::vector<at::Tensor> out;
    for (const Factors& f : adapter.factors()) {
      for (const at::Tensor& t : {f.f.a, f.f.b}) out.push_back(t.clone());
    }
    return out;
  }

  static void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(at::equal(a[i], b[i])) << i;
  }

  const model::TinyModel directory_;
  const ScratchDir scratch_;
  model::Decoder decoder_;
  std::vector<model::NamedLinear> linears_;
};

TEST_F(AdapterTest, NamesMatchWholeEndingsOfPaths) {
  EXPECT_EQ(targets(Names{"v_proj"}),
            (Names{"model.layers.0.self_attn.v_proj", "model.layers.1.self_attn.v_proj"}));
  EXPECT_EQ(targets(Names{"1.mlp.up_proj", "model.layers.0.self_attn.k_proj"}),
            (Names{"model.layers.0.self_attn.k_proj", "model.layers.1.mlp.up_proj"}));
  EXPECT_EQ(targets(Names{"v_proj", "self_attn.v_proj"}).size(), 2u) << "each once";
  EXPECT_EQ(error_of([&] { targets(Names{"proj"}); }),
            "lora: target module 'proj' matches nothing; there is: q_proj, k_proj, v_proj, o_proj, "
            "gate_proj, up_proj, down_proj, lm_head");
}

TEST_F(AdapterTest, APathIsKnownByTheNameInsideAModelWithPicturesToo) {
  EXPECT_EQ(other_path("model.layers.0.mlp"), "model.language_model.layers.0.mlp");
  EXPECT_EQ(other_path("model.language_model.layers.0.mlp"), "model.layers.0.mlp");
  EXPECT_EQ(other_path("lm_head"), "");
  EXPECT_EQ(targets(Names{"model.language_model.layers.0.self_attn.k_proj"}),
            Names{"model.layers.0.self_attn.k_proj"});
  EXPECT_EQ(targets(std::string(R"(model\.language_model\..*\.1\..*up_proj)")),
            Names{"model.layers.1.mlp.up_proj"});
  const PeftConfig config{.rank = 2,
                          .rank_pattern = {{"model.language_model.layers.0.mlp.up_proj", 5}}};
  EXPECT_EQ(Sizes(config).rank("model.layers.0.mlp.up_proj"), 5);
}

// An adapter that is saved beside weights by the checkpoint's paths has these paths, too.
TEST_F(AdapterTest, ModulesThatAreNamedByTheirOtherPathAreSavedByTheCheckpoints) {
  const std::string other = "model.language_model.layers.0.mlp.up_proj",
                    here = "model.layers.0.mlp.up_proj";
  const PeftConfig config = with_named_targets({.target_modules = Names{"k_proj", other},
                                                .rank_pattern = {{other, 5}, {".*other", 6}},
                                                .alpha_pattern = {{other, 2}}},
                                               shapes_of(linears_));
  EXPECT_EQ(std::get<Names>(config.target_modules), (Names{"k_proj", here}));
  EXPECT_EQ(config.rank_pattern,
            (std::vector<std::pair<std::string, int64_t>>{{here, 5}, {".*other", 6}}));
  EXPECT_EQ(config.alpha_pattern, (std::vector<std::pair<std::string, double>>{{here, 2}}));
}

// peft would match nothing by the expression, which is of another class's paths.
TEST_F(AdapterTest, ARegexThatMatchesByTheOtherPathIsSavedAsTheModulesThatItMatches) {
  const auto named = [&](const std::string& regex) {
    return with_named_targets({.target_modules = regex}, shapes_of(linears_)).target_modules;
  };
  const std::string here = R"(model\.layers\.1\..*up_proj)";
  EXPECT_EQ(std::get<std::string>(named(here)), here);
  EXPECT_EQ(std::get<Names>(named(R"(model\.language_model\.layers\.1\..*(up|v)_proj)")),
            (Names{"model.layers.1.self_attn.v_proj", "model.layers.1.mlp.up_proj"}));
  const PeftConfig config = with_named_targets(
      {.target_modules = Names{"up_proj"},
       .rank_pattern = {{R"(model\.language_model\..*\.up_proj)", 5}, {"up_proj", 6}}},
      shapes_of(linears_));
  EXPECT_EQ(
      config.rank_pattern,
      (std::vector<std::pair<std::string, int64_t>>{
          {"model.layers.0.mlp.up_proj", 5}, {"model.layers.1.mlp.up_proj", 5}, {"up_proj", 6}}));
}

TEST_F(AdapterTest, ATextIsARegexOfWholePathsOrAllLinear) {
  EXPECT_EQ(targets(std::string("all-linear")).size(), 14u);
  EXPECT_EQ(targets(std::string(R"(.*\.1\..*(up|down)_proj)")),
            (Names{"model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"}));
  EXPECT_EQ(error_of([&] { targets(std::string("q_proj")); }),
            "lora: target_modules 'q_proj' matches nothing; there is: q_proj, k_proj, v_proj, "
            "o_proj, gate_proj, up_proj, down_proj, lm_head");
  const std::string broken = error_of([&] { targets(std::string("(q_proj")); });
  EXPECT_TRUE(broken.starts_with("lora: target_modules '(q_proj' is not a regular expression: "))
      << broken;
}

TEST_F(AdapterTest, TheHeadIsNamedOrMatchedAndIsNoneOfAllLinear) {
  EXPECT_EQ(targets(Names{"lm_head"}), Names{"lm_head"});
  EXPECT_EQ(targets(Names{"v_proj", "lm_head"}).back(), "lm_head");
  EXPECT_EQ(targets(std::string(".*(v_proj|_head)")).size(), 3u);
  for (const auto& of : {std::variant<Names, std::string>(Names{"v_proj", "lm_head"}),
                         std::variant<Names, std::string>(".*_head")}) {
    EXPECT_TRUE(targets_head({.target_modules = of}));
  }
  for (const auto& of : {std::variant<Names, std::string>(Names{"v_proj", "head"}),
                         std::variant<Names, std::string>("all-linear"),
                         std::variant<Names, std::string>("(lm_head")}) {
    EXPECT_FALSE(targets_head({.target_modules = of}));
  }
}

TEST_F(AdapterTest, AllLinearIsKeptAsTheNamesThatItStandsFor) {
  PeftConfig all = config();
  all.target_modules = "all-linear";
  const Adapter adapter(all, linears_, 1);
  EXPECT_EQ(std::get<Names>(adapter.config().target_modules),
            (Names{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}));
  const auto shapes = shapes_of(linears_);
  EXPECT_EQ(match_targets(adapter.config(), shapes), match_targets(all, shapes));
}

TEST_F(AdapterTest, ATargetThatMatchesNothingIsToldAndKeptWhereOthersMatch) {
  PeftConfig some = config();
  some.target_modules = Names{"q_proj", "query"};
  Warnings warnings;
  const Adapter adapter(some, linears_, 1);
  EXPECT_EQ(warnings.texts(),
            Names{"lora: target module 'query' matches nothing, and changes nothing"});
  EXPECT_EQ(adapter.factors().size(), 2u);
  EXPECT_EQ(adapter.config().target_modules, some.target_modules) << "as peft writes it";
}

TEST_F(AdapterTest, TargetsOfWhichNoneMatchesAreRefused) {
  EXPECT_EQ(error_of([&] { targets(Names{"query", "key"}); }),
            "lora: target module 'query' matches nothing; there is: q_proj, k_proj, v_proj, "
            "o_proj, gate_proj, up_proj, down_proj, lm_head");
  for (const auto& none : {std::variant<Names, std::string>(Names{}),
                           std::variant<Names, std::string>(std::string())}) {
    EXPECT_EQ(error_of([&] { targets(none); }),
              "lora: target_modules is empty; name modules or use \"all-linear\"");
  }
}

TEST_F(AdapterTest, ImpossibleConfigsAreRefused) {
  const auto refusal = [&](auto&& change) {
    PeftConfig c = config();
    change(c);
    return error_of([&] { Adapter(c, linears_, 1); });
  };
  EXPECT_EQ(refusal([](PeftConfig& c) { c.rank = 0; }), "lora: rank is 0, it must be at least 1");
  EXPECT_EQ(refusal([](PeftConfig& c) { c.rank = 5000; }), "lora: rank is 5000, the limit is 4096");
  EXPECT_EQ(refusal([](PeftConfig& c) { c.alpha = std::numeric_limits<double>::infinity(); }),
            "lora: lora_alpha is inf, it must be finite");
  EXPECT_EQ(refusal([](PeftConfig& c) { c.dropout = 1; }),
            "lora: lora_dropout is 1, it must be in [0, 1)");
  EXPECT_EQ(refusal([](PeftConfig& c) { c.dropout = -0.5; }),
            "lora: lora_dropout is -0.5, it must be in [0, 1)");
}

TEST_F(AdapterTest, TheScaleIsAlphaByRankOrByItsRoot) {
  PeftConfig c = config();
  c.rank = 16;
  c.alpha = 8;
  EXPECT_EQ(Sizes(c).scale("q_proj"), 0.5);
  c.use_rslora = true;
  EXPECT_EQ(Sizes(c).scale("q_proj"), 2.0);
  EXPECT_EQ(Adapter(c, linears_, 1).factors()[0].f.scale, 2.0);
}

TEST_F(AdapterTest, PatternsGiveModulesOtherRanksAndAlphasTheFirstThatMatchesCounts) {
  PeftConfig c = config();
  c.target_modules = "all-linear";
  c.rank = 4, c.alpha = 8;
  c.rank_pattern = {{"q_proj", 2}, {R"(layers\.1\..*)", 5}, {".*up_proj", 6}};
  c.alpha_pattern = {{"up_proj|q_proj", 3}, {"proj", 100}};
  const Sizes sizes(c);
  EXPECT_EQ(sizes.rank("model.layers.1.self_attn.q_proj"), 2);
  EXPECT_EQ(sizes.rank("model.layers.1.self_attn.k_proj"), 5);
  EXPECT_EQ(sizes.rank("model.layers.0.mlp.up_proj"), 6);
  EXPECT_EQ(sizes.rank("model.layers.0.mlp.down_proj"), 4);  // "proj" is no whole name
  EXPECT_EQ(sizes.scale("model.layers.0.mlp.down_proj"), 2);
  EXPECT_EQ(sizes.scale("model.layers.0.mlp.up_proj"), 0.5);
  const Adapter adapter(c, linears_, 1);
  for (size_t i = 0; i < adapter.factors().size(); ++i) {
    const Factors& f = adapter.factors()[i];
    EXPECT_EQ(f.f.a.size(0), sizes.rank(f.path)) << f.path;
    EXPECT_EQ(f.f.b.size(1), sizes.rank(f.path)) << f.path;
    EXPECT_EQ(f.f.scale, sizes.scale(f.path)) << f.path;
    EXPECT_EQ(linears_[adapter.linears()[i]].path, f.path);
  }
  c.rank_pattern = {{"(", 2}};
  EXPECT_NE(error_of([&] { Sizes wrong(c); }).find("lora: rank_pattern '(' is not a regular "),
            std::string::npos);
  c.rank_pattern = {{"q", 5000}};
  EXPECT_EQ(error_of([&] { Sizes wrong(c); }),
            "lora: rank_pattern has a rank of 5000, the limit is 4096");
}

TEST_F(AdapterTest, AStartsUniformAndBAtZero) {
  const Adapter adapter(config(), linears_, 1);
  ASSERT_EQ(adapter.factors().size(), 4u);
  int64_t parameters = 0;
  for (const Factors& f : adapter.factors()) {
    const bool down = f.path.ends_with("down_proj");
    const int64_t in = down ? 80 : 48;
    EXPECT_EQ(f.f.a.sizes(), (at::IntArrayRef{3, in})) << f.path;
    EXPECT_EQ(f.f.b.sizes(), (at::IntArrayRef{48, 3})) << f.path;
    const double bound = 1 / std::sqrt(static_cast<double>(in));
    EXPECT_LE(f.f.a.abs().max().item<double>(), bound) << f.path;
    EXPECT_GT(f.f.a.abs().max().item<double>(), 0.9 * bound) << f.path;
    // The deviation of a uniform draw, and its mean.
    EXPECT_NEAR(f.f.a.std().item<double>(), bound / std::sqrt(3.0), 0.1 * bound) << f.path;
    EXPECT_NEAR(f.f.a.mean().item<double>(), 0, 0.15 * bound) << f.path;
    EXPECT_EQ(f.f.b.abs().max().item<double>(), 0) << f.path;
    EXPECT_FALSE(f.grads[0].defined()) << f.path;
    parameters += 3 * (in + 48);
  }
  EXPECT_EQ(adapter.num_bytes(), 4 * parameters);
}

TEST_F(AdapterTest, OneSeedGivesOneStartWhateverElseIsTargeted) {
  expect_same(values(Adapter(config(), linears_, 7)), values(Adapter(config(), linears_, 7)));
  Adapter one(config(), linears_, 7), other(config(), linears_, 8),
      wide(config({"q_proj", "k_proj", "v_proj", "down_proj"}), linears_, 7);
  for (size_t i = 0; i < linears_.size(); ++i) {
    if (!one.at(i)) continue;
    EXPECT_FALSE(at::equal(one.at(i)->f.a, other.at(i)->f.a)) << linears_[i].path;
    EXPECT_TRUE(at::equal(one.at(i)->f.a, wide.at(i)->f.a)) << linears_[i].path;
  }
  EXPECT_FALSE(at::equal(one.factors()[0].f.a, one.factors()[2].f.a)) << "modules differ";
  EXPECT_EQ(one.at(1), nullptr) << "k_proj is not targeted";
}

TEST_F(AdapterTest, ASavedOneIsLoadedAndLayoutsOfTheOldWeightsGo) {
  Adapter from(config(), linears_, 1), to(config(), linears_, 2);
  for (Factors& f : from.factors()) f.f.b.normal_();
  for (Factors& f : to.factors()) f.f.repack(at::kBFloat16);
  to.load(saved(from));
  expect_same(values(to), values(from));
  for (const Factors& f : to.factors()) EXPECT_FALSE(f.f.packed());
}

TEST_F(AdapterTest, AForkHasTheWeightsAndTheGradientsAndSharesNoWeight) {
  Adapter from(config(), linears_, 1);
  from.make_grads();
  for (Factors& f : from.factors()) {
    f.grads[0].fill_(3);
    f.f.repack(at::kBFloat16);
  }
  const auto before = values(from);
  const auto fork = from.fork();
  expect_same(values(*fork), before);
  for (size_t i = 0; i < fork->factors().size(); ++i) {
    Factors& f = fork->factors()[i];
    EXPECT_EQ(f.grads[0].min().item<float>(), 3);
    EXPECT_FALSE(from.factors()[i].grads[0].defined());
    f.f.a.add_(1);
    f.f.b.add_(1);
    f.f.repack(at::kBFloat16);
    EXPECT_FALSE(at::equal(f.f.a_read(), from.factors()[i].f.a_read()));
    EXPECT_FALSE(at::equal(f.f.b_rO, from.factors()[i].f.b_rO));
  }
  expect_same(values(from), before);
}

TEST_F(AdapterTest, AtRestItHoldsItsWeightsAlone) {
  Adapter adapter(config(), linears_, 1);
  const int64_t weights = adapter.num_bytes();
  adapter.make_grads();
  for (Factors& f : adapter.factors()) f.f.repack(at::kBFloat16);
  EXPECT_EQ(adapter.num_bytes(), 2 * weights + weights / 2)
      << "and the gradients, and bf16 layouts";
  adapter.zero_grads();
  adapter.weights_changed();
  EXPECT_EQ(adapter.num_bytes(), weights);
}

TEST_F(AdapterTest, AnAdapterOfAnotherModelConfigOrShapeChangesNothing) {
  Adapter adapter(config(), linears_, 2);
  const auto before = values(adapter);
  const auto refusal = [&](Adapter& other) {
    const std::string text = error_of([&] { adapter.load(saved(other)); });
    expect_same(values(adapter), before);
    return text;
  };
  PeftConfig ranked = config();
  ranked.rank = 4;
  Adapter rank_four(ranked, linears_, 1);
  EXPECT_EQ(refusal(rank_four),
            "lora: the saved adapter has rank 4, this one has 3: create it with the r and "
            "rank_pattern of the saved one");
  PeftConfig scaled = config();
  scaled.alpha = 12;
  Adapter twice(scaled, linears_, 1);
  EXPECT_EQ(refusal(twice),
            "lora: the saved adapter has scale 4, this one has 2: create it with the lora_alpha "
            "and use_rslora of the saved one");

  Adapter more(config({"q_proj", "up_proj", "down_proj"}), linears_, 1);
  EXPECT_EQ(refusal(more),
            "lora: the saved adapter has module model.layers.0.mlp.up_proj, which this model does "
            "not have or the adapter's config does not target: is it of another base model?");
  Adapter fewer(config({"q_proj"}), linears_, 1);
  EXPECT_EQ(refusal(fewer),
            "lora: the saved adapter has no module model.layers.0.mlp.down_proj, which its config "
            "targets: is it of another base model?");

  JsonObject wider = model::tiny_config();
  wider["intermediate_size"] = 96;
  const model::TinyModel other_model(wider);
  model::Decoder other(model::read_spec(wider), Checkpoint::open(other_model.path()), at::kFloat);
  Adapter foreign(config(), other.linears(), 1);
  EXPECT_EQ(
      refusal(foreign),
      "lora: " + scratch_.path().string() +
          ": lora_A of model.layers.0.mlp.down_proj has shape [3, 96], this model's is [3, 80]: is "
          "it of another base model?");
}

// Reading them would find the NaN, and ask for room.
TEST_F(AdapterTest, AnAdapterThatDoesNotFitTheTargetIsRefusedBeforeATensorIsRead) {
  const auto refusal = [&](const PeftConfig& saved) {
    Adapter broken(saved, linears_, 1);
    for (Factors& f : broken.factors()) f.f.a.fill_(NAN);
    write_peft(scratch_.path(), broken.config(), broken.entries());
    const PeftConfig target = config();
    const auto reserve = [](int64_t bytes) { FAIL() << bytes << " bytes are to be read"; };
    const std::string where = "lora: " + scratch_.path().string() + ": ";
    std::string text =
        error_of([&] { read_adapter(scratch_.path(), shapes_of(linears_), reserve, &target); });
    EXPECT_TRUE(text.starts_with(where)) << text;
    return "lora: DIR: " + text.substr(where.size());
  };
  PeftConfig other = config();
  other.rank = 4096;
  EXPECT_EQ(refusal(other),
            "lora: DIR: the saved adapter has rank 4096, this one has 3: create it with the r and "
            "rank_pattern of the saved one");
  other = config();
  other.use_rslora = true;
  EXPECT_EQ(refusal(other).substr(0, 40), "lora: DIR: the saved adapter has scale 3");
  EXPECT_EQ(refusal(config({"q_proj"})),
            "lora: DIR: the saved adapter has no module model.layers.0.mlp.down_proj, which its "
            "config targets: is it of another base model?");
  EXPECT_EQ(refusal(config({"q_proj", "up_proj", "down_proj"})),
            "lora: DIR: the saved adapter has module model.layers.0.mlp.up_proj, which this model "
            "does not have or the adapter's config does not target: is it of another base model?");
}

// A few bytes on disk: the tensor is a hole in a sparse file.
TEST_F(AdapterTest, ATensorOfAnotherShapeIsRefusedBeforeItIsRead) {
  Adapter adapter(config({"q_proj"}), linears_, 1);
  saved(adapter);
  const auto file = scratch_ / "adapter_model.safetensors";
  JsonObject header;
  int64_t end = 0;
  for (const SavedAdapter::Module& module : saved(adapter).modules) {
    for (const char* half : {"A", "B"}) {
      std::vector<int64_t> shape = (*half == 'A' ? module.a : module.b).sizes().vec();
      if (header.empty()) shape[1] = int64_t{1} << 36;
      const int64_t begin = std::exchange(end, end + 4 * shape[0] * shape[1]);
      header["base_model.model." + module.path + ".lora_" + half + ".weight"] = {
          {"dtype", "F32"},
          {"shape", JsonArray(shape.begin(), shape.end())},
          {"data_offsets", {begin, end}}};
    }
  }
  const std::string text = boost::json::serialize(header);
  const uint64_t size = text.size();
  write_text(file, std::string(reinterpret_cast<const char*>(&size), 8) + text);
  std::filesystem::resize_file(file, 8 + text.size() + static_cast<size_t>(end));
  EXPECT_EQ(error_of([&] { read_adapter(scratch_.path(), shapes_of(linears_)); }),
            "lora: " + scratch_.path().string() +
                ": lora_A of model.layers.0.self_attn.q_proj has shape [3, 68719476736], this "
                "model's is [3, 48]: is it of another base model?");
}

}  // namespace
}  // namespace twinkle::lora
