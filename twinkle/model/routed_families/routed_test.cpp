#include "twinkle/model/routed_families/routed.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

JsonObject routed_config(const std::string& type, const std::string& architecture) {
  JsonObject c = tiny_config();
  c["model_type"] = type;
  c["architectures"] = JsonArray{Json(architecture)};
  c["num_hidden_layers"] = 4;
  c["moe_intermediate_size"] = 24;
  c["num_experts_per_tok"] = 3;
  return c;
}

const ExpertsSpec& experts_of(const DecoderSpec& spec, size_t layer) {
  return std::get<ExpertsSpec>(spec.layers.at(layer).mlp);
}

// "dense routed ...".
std::string kinds_of(const DecoderSpec& spec) {
  std::string out;
  for (const LayerSpec& layer : spec.layers)
    out += std::holds_alternative<ExpertsSpec>(layer.mlp) ? "routed " : "dense ";
  return out;
}

JsonObject qwen3_moe_config() {
  JsonObject c = routed_config("qwen3_moe", "Qwen3MoeForCausalLM");
  c["num_experts"] = 8;
  return c;
}

TEST(Qwen3Moe, HasNormedHeadsAndExpertsInEveryLayer) {
  JsonObject c = qwen3_moe_config();
  DecoderSpec spec = read_spec(c);
  EXPECT_TRUE(spec.layers[0].attention().qk_norm);
  EXPECT_FALSE(spec.layers[0].attention().qkv_bias);
  EXPECT_EQ(kinds_of(spec), "routed routed routed routed ");
  ExpertsSpec want{.num_experts = 8, .intermediate_size = 24};
  want.route.top_k = 3;
  want.aux_loss = nn::AuxLoss::kAllLayers;
  EXPECT_EQ(experts_of(spec, 3), want);
  c["norm_topk_prob"] = true;
  EXPECT_TRUE(experts_of(read_spec(c), 0).route.normalise);
}

TEST(Qwen3Moe, TakesTheNumberOfExpertsByTheNameThatTransformersWrites) {
  JsonObject c = qwen3_moe_config();
  c.erase("num_experts");
  c["num_local_experts"] = 16;
  EXPECT_EQ(experts_of(read_spec(c), 0).num_experts, 16);
  c.erase("num_local_experts");
  EXPECT_NE(invalid_of([&] { read_spec(c); }).find("num_experts"), std::string::npos);
}

TEST(Qwen3Moe, LeavesTheNamedLayersAndTheStepsDense) {
  JsonObject c = qwen3_moe_config();
  c["mlp_only_layers"] = JsonArray{1};
  EXPECT_EQ(kinds_of(read_spec(c)), "routed dense routed routed ");
  c["decoder_sparse_step"] = 2;
  EXPECT_EQ(kinds_of(read_spec(c)), "dense dense dense routed ");
  c["mlp_only_layers"] = "1";
  EXPECT_EQ(invalid_of([&] { read_spec(c); }),
            "model: config field 'mlp_only_layers' is \"1\", it must be a list of layers");
}

TEST(Qwen3Moe, ItsWindowIsThatOfEveryLayer) {
  JsonObject c = qwen3_moe_config();
  c["sliding_window"] = 7;
  c["max_window_layers"] = 2;
  for (const int64_t window : {0, 7}) {
    c["use_sliding_window"] = window > 0;
    for (const LayerSpec& layer : read_spec(c).layers) EXPECT_EQ(layer.attention().window, window);
  }
}

TEST(Qwen3Moe, MoreExpertsATokenThanThereAreAreRefused) {
  JsonObject c = qwen3_moe_config();
  c["num_experts_per_tok"] = 9;
  EXPECT_EQ(invalid_of([&] { read_spec(c); }),
            "model: config field 'num_experts_per_tok' is 9, it must be at most the number of "
            "experts, 8");
}

// As Qwen3-Coder-30B-A3B's, but for sizes: it says what is so of every qwen3_moe.
TEST(Qwen3Moe, TheCodersConfigIsThatOfAnyOther) {
  JsonObject c = qwen3_moe_config();
  const JsonObject coder{
      {"attention_bias", false},        {"decoder_sparse_step", 1}, {"hidden_act", "silu"},
      {"max_window_layers", 28},        {"qkv_bias", false},        {"rope_scaling", nullptr},
      {"mlp_only_layers", JsonArray{}}, {"use_qk_norm", true},      {"sliding_window", nullptr},
      {"use_sliding_window", false}};
  const DecoderSpec before = read_spec(c);
  for (const auto& [key, value] : coder) c[key] = value;
  EXPECT_EQ(difference(before, read_spec(c)), "");
}

TEST(Qwen3Moe, ItsExpertsAreStackedOrOneByOneInFiles) {
  const Layout layout = read_spec(qwen3_moe_config()).layout;
  EXPECT_EQ(layout.parts_of("model.layers.2.mlp.experts.gate_up_proj", 2),
            (std::vector<std::string>{"model.layers.2.mlp.experts.0.gate_proj.weight",
                                      "model.layers.2.mlp.experts.0.up_proj.weight",
                                      "model.layers.2.mlp.experts.1.gate_proj.weight",
                                      "model.layers.2.mlp.experts.1.up_proj.weight"}));
  EXPECT_EQ(layout.parts_of("model.layers.2.mlp.experts.down_proj", 1),
            (std::vector<std::string>{"model.layers.2.mlp.experts.0.down_proj.weight"}));
}

JsonObject qwen2_moe_config() {
  JsonObject c = routed_config("qwen2_moe", "Qwen2MoeForCausalLM");
  c["num_experts"] = 6;
  c["shared_expert_intermediate_size"] = 40;
  return c;
}

TEST(Qwen2Moe, HasBiasesOnQueriesKeysAndValuesAndASharedExpertBehindAGate) {
  JsonObject c = qwen2_moe_config();
  const DecoderSpec spec = read_spec(c);
  EXPECT_TRUE(spec.layers[0].attention().qkv_bias);
  EXPECT_FALSE(spec.layers[0].attention().o_bias);
  const ExpertsSpec& experts = experts_of(spec, 0);
  EXPECT_EQ(experts.shared_size, 40);
  EXPECT_TRUE(experts.shared_gate);
  EXPECT_EQ(experts.shared_name, "shared_expert");
  EXPECT_FALSE(experts.route.normalise);
  for (const Json& no : {Json(false), Json(nullptr)}) {
    c["qkv_bias"] = no;
    EXPECT_FALSE(read_spec(c).layers[0].attention().qkv_bias);
  }
}

TEST(Qwen2Moe, ItsWindowsAreThoseOfEveryOtherLayerOfTheFirst) {
  JsonObject c = qwen2_moe_config();
  c["use_sliding_window"] = true;
  c["sliding_window"] = 7;
  c["max_window_layers"] = 2;
  std::vector<int64_t> windows;
  for (const LayerSpec& layer : read_spec(c).layers) windows.push_back(layer.attention().window);
  EXPECT_EQ(windows, (std::vector<int64_t>{7, 0, 0, 0}));
}

JsonObject mixtral_config() {
  JsonObject c = routed_config("mixtral", "MixtralForCausalLM");
  c["num_local_experts"] = 8;
  c.erase("moe_intermediate_size");
  return c;
}

TEST(Mixtral, HasExpertsOfTheIntermediateSizeWhoseWeightsSumToOne) {
  const DecoderSpec spec = read_spec(mixtral_config());
  EXPECT_EQ(kinds_of(spec), "routed routed routed routed ");
  EXPECT_EQ(experts_of(spec, 0).intermediate_size, 80);
  EXPECT_TRUE(experts_of(spec, 0).route.normalise);
}

TEST(Mixtral, HasAWindowInEveryLayerWhereThereIsOneAndAThetaOfAMillionUnlessOneIsGiven) {
  JsonObject c = mixtral_config();
  EXPECT_EQ(read_spec(c).rope.theta, 10000);
  EXPECT_EQ(read_spec(c).layers[1].attention().window, 0);
  c.erase("rope_theta");
  c["sliding_window"] = 5;
  EXPECT_EQ(read_spec(c).rope.theta, 1e6);
  EXPECT_EQ(read_spec(c).layers[1].attention().window, 5);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    JsonObject own = c;
    own[key] = JsonObject{{"rope_type", "linear"}, {"factor", 2}, {"rope_theta", 777}};
    EXPECT_EQ(read_spec(own).rope.theta, 777) << key;
    own[key].as_object().erase("rope_theta");
    EXPECT_EQ(read_spec(own).rope.theta, 1e6) << key;
  }
}

TEST(Mixtral, ItsFilesHaveNamesOfTheirOwn) {
  const Layout layout = read_spec(mixtral_config()).layout;
  EXPECT_EQ(layout.name("model.layers.1.mlp.gate.weight"),
            "model.layers.1.block_sparse_moe.gate.weight");
  EXPECT_EQ(layout.parts_of(layout.name("model.layers.1.mlp.experts.gate_up_proj"), 1),
            (std::vector<std::string>{"model.layers.1.block_sparse_moe.experts.0.w1.weight",
                                      "model.layers.1.block_sparse_moe.experts.0.w3.weight"}));
}

JsonObject deepseek_config() {
  JsonObject c = routed_config("deepseek", "DeepseekForCausalLM");
  c["n_routed_experts"] = 8;
  c["n_shared_experts"] = 2;
  c["first_k_dense_replace"] = 1;
  c["moe_layer_freq"] = 1;
  c["scoring_func"] = "softmax";
  return c;
}

TEST(Deepseek, HasADenseLayerFirstAndSharedExpertsWithoutAGate) {
  JsonObject c = deepseek_config();
  const DecoderSpec spec = read_spec(c);
  EXPECT_EQ(kinds_of(spec), "dense routed routed routed ");
  EXPECT_EQ(experts_of(spec, 1).shared_size, 48);
  EXPECT_EQ(experts_of(spec, 1).shared_name, "shared_experts");
  EXPECT_FALSE(experts_of(spec, 1).shared_gate);
  EXPECT_FALSE(experts_of(spec, 1).route.normalise);
  EXPECT_EQ(experts_of(spec, 1).aux_loss, nn::AuxLoss::kEachLayer);
  c["n_shared_experts"] = nullptr;
  EXPECT_EQ(experts_of(read_spec(c), 1).shared_size, 0);
  c["moe_layer_freq"] = 2;
  EXPECT_EQ(kinds_of(read_spec(c)), "dense dense routed dense ");
}

// Its own code divides by the sum where there is more than one; that of qwen3_moe always.
TEST(Deepseek, OneExpertATokenKeepsItsWeight) {
  for (const bool norm : {false, true}) {
    JsonObject c = deepseek_config(), qwen = qwen3_moe_config();
    c["norm_topk_prob"] = qwen["norm_topk_prob"] = norm;
    EXPECT_EQ(experts_of(read_spec(c), 1).route.normalise, norm);
    c["num_experts_per_tok"] = qwen["num_experts_per_tok"] = 1;
    EXPECT_FALSE(experts_of(read_spec(c), 1).route.normalise);
    EXPECT_EQ(experts_of(read_spec(qwen), 1).route.normalise, norm);
  }
}

TEST(Deepseek, AnotherKindOfScoresOrOfChoiceIsRefused) {
  JsonObject c = deepseek_config();
  c["scoring_func"] = "sigmoid";
  EXPECT_EQ(invalid_of([&] { read_spec(c); }),
            "model: config field 'scoring_func' is \"sigmoid\"; known: \"softmax\"");
  c = deepseek_config();
  c["topk_method"] = "group_limited_greedy";
  EXPECT_EQ(invalid_of([&] { read_spec(c); }),
            "model: config field 'topk_method' is \"group_limited_greedy\"; known: \"greedy\"");
}

JsonObject glm4_moe_config() {
  JsonObject c = routed_config("glm4_moe", "Glm4MoeForCausalLM");
  c["n_routed_experts"] = 8;
  c["first_k_dense_replace"] = 2;
  return c;
}

TEST(Glm4Moe, TurnsHalfOfEachHeadAndChoosesBySigmoidsWithACorrection) {
  JsonObject c = glm4_moe_config();
  DecoderSpec spec = read_spec(c);
  EXPECT_EQ(spec.rope.rotary_dim, 6);
  EXPECT_FALSE(spec.rope.interleaved);
  EXPECT_FALSE(spec.layers[0].attention().qk_norm);
  EXPECT_EQ(kinds_of(spec), "dense dense routed routed ");
  const ExpertsSpec& experts = experts_of(spec, 2);
  EXPECT_TRUE(experts.correction);
  EXPECT_EQ(experts.route.score, kernels::RouteScore::kSigmoid);
  EXPECT_TRUE(experts.route.normalise);
  EXPECT_EQ(experts.route.scale, 1);
  EXPECT_EQ(experts.shared_size, 24);
  c["use_qk_norm"] = true;
  c["attention_bias"] = true;
  c["routed_scaling_factor"] = 2.5;
  c["n_group"] = 4, c["topk_group"] = 2;
  c["partial_rotary_factor"] = 1.0;
  spec = read_spec(c);
  EXPECT_TRUE(spec.layers[0].attention().qk_norm);
  EXPECT_TRUE(spec.layers[0].attention().qkv_bias);
  EXPECT_FALSE(spec.layers[0].attention().o_bias);
  EXPECT_EQ(experts_of(spec, 2).route.scale, 2.5);
  EXPECT_EQ(experts_of(spec, 2).aux_loss, nn::AuxLoss::kNone);
  EXPECT_EQ(experts_of(spec, 2).route.groups, 4);
  EXPECT_EQ(experts_of(spec, 2).route.top_groups, 2);
  EXPECT_EQ(spec.rope.rotary_dim, 12);
}

TEST(Glm4Moe, SkipsTheLayerThatPredictsFurtherTokens) {
  Layout layout = read_spec(glm4_moe_config()).layout;
  layout.settle(std::vector<std::string>{"model.layers.4.eh_proj.weight"});
  EXPECT_TRUE(layout.skips("model.layers.4.mlp.gate.weight"));
  EXPECT_FALSE(layout.skips("model.layers.3.mlp.gate.weight"));
}

TEST(Glm4Moe, GroupsThatCannotBeAreRefusedByTheConfigsKeys) {
  const auto refusal = [](const JsonObject& fields) {
    JsonObject c = glm4_moe_config();
    for (const auto& [key, value] : fields) c[key] = value;
    return invalid_of([&] { read_spec(c); });
  };
  EXPECT_EQ(refusal({{"n_group", 3}}),
            "model: config field 'n_group' is 3, it must divide the number of experts, 8");
  EXPECT_EQ(refusal({{"n_group", 4}, {"topk_group", 5}}),
            "model: config field 'topk_group' is 5, it must be at most n_group, 4");
  EXPECT_EQ(refusal({{"n_group", 4}, {"topk_group", 1}}),
            "model: config field 'num_experts_per_tok' is 3, it must be at most 2, the experts of "
            "topk_group, 1, of n_group, 4, groups");
  EXPECT_EQ(
      refusal({{"n_group", 8}, {"topk_group", 4}}),
      "model: config field 'n_group' is 8, it must be at most 4: a group is worth what its two "
      "best experts are");
  for (const double scale : {0.0, -1.0, 1e7}) {
    EXPECT_TRUE(refusal({{"routed_scaling_factor", scale}})
                    .starts_with("model: config field 'routed_scaling_factor' is "))
        << scale;
  }
  EXPECT_EQ(refusal({{"routed_scaling_factor", 0}}),
            "model: config field 'routed_scaling_factor' is 0, it must be above 0 and at most "
            "1000000");
  EXPECT_EQ(refusal({{"moe_layer_freq", 2}}),
            "model: config field 'moe_layer_freq' is 2; known: 1");
}

TEST(Glm4Moe, AnotherKindOfChoiceIsRefused) {
  JsonObject c = glm4_moe_config();
  c["topk_method"] = "greedy";
  EXPECT_EQ(invalid_of([&] { read_spec(c); }),
            "model: config field 'topk_method' is \"greedy\"; known: \"noaux_tc\"");
}

// By the last layer, whose weights have no numbers.
TEST(RoutedFamilies, AnotherDeviceThanTheCpuIsRefusedByTheFamilysName) {
  for (const JsonObject& config : {qwen3_moe_config(), qwen2_moe_config(), mixtral_config(),
                                   deepseek_config(), glm4_moe_config()}) {
    const DecoderSpec spec = read_spec(config);
    Parts parts(
        [](const std::string&, const std::vector<int64_t>& shape) {
          return at::empty(shape, at::device(at::kMeta));
        },
        spec.layout);
    EXPECT_EQ(invalid_of([&] { Layer(spec, spec.layers.back(), parts); }),
              "model: device is meta, but routed experts (" + spec.family +
                  ") run on the CPU only in this version; set the device to cpu");
  }
}

}  // namespace
}  // namespace twinkle::model
