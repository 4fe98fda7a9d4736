#include "twinkle/model/gemma_families/gemma.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "twinkle/kernels/allocation_meter_for_test.h"
#include "twinkle/model/decoder.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

JsonObject tiny_gemma(const char* family, int64_t layers = 2) {
  JsonObject config = tiny_config(family);
  config["num_hidden_layers"] = layers;
  config["sliding_window"] = 8;
  config["query_pre_attn_scalar"] = 20;
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config["hidden_act"] = "gelu_pytorch_tanh";  // as the hub's files have it
  return config;
}

std::vector<int64_t> windows_in(const DecoderSpec& spec) {
  std::vector<int64_t> out;
  for (const LayerSpec& layer : spec.layers) out.push_back(layer.attention().window);
  return out;
}

std::string refusal_of_gemma(JsonObject config, const char* key, const Json& value) {
  config[key] = value;
  return error_of([&] { read_spec(config); });
}

TEST(Gemma2, CapsScoresAndLogitsAndHasAWindowOnEveryOtherLayer) {
  JsonObject config = tiny_gemma("gemma2", 4);
  const DecoderSpec spec = read_spec(config);
  EXPECT_EQ(windows_in(spec), (std::vector<int64_t>{8, 0, 8, 0}));
  const AttentionSpec& a = spec.layers[1].attention();
  EXPECT_EQ(a.softcap, 50);
  EXPECT_EQ(a.scale, 1 / std::sqrt(20.0));
  EXPECT_FALSE(a.qk_norm || a.local_rope || a.qkv_bias);
  EXPECT_EQ(spec.softcap, 30);
  EXPECT_EQ(spec.embed_scale, std::sqrt(48.0));
  EXPECT_TRUE(spec.norm.zero_centred && spec.sandwich && spec.tied_head);
  EXPECT_EQ(spec.layers[0].gated_mlp().activation, nn::Activation::kGeluTanh);
  EXPECT_EQ(spec.rope.theta, 10000);
  config["attn_logit_softcapping"] = 5.5;
  config["final_logit_softcapping"] = nullptr;
  config["layer_types"] =
      JsonArray{"full_attention", "full_attention", "sliding_attention", "full_attention"};
  const DecoderSpec other = read_spec(config);
  EXPECT_EQ(other.layers[0].attention().softcap, 5.5);
  EXPECT_EQ(other.softcap, 0);
  EXPECT_EQ(windows_in(other), (std::vector<int64_t>{0, 0, 8, 0}));
  EXPECT_EQ(difference(spec, other), "final_logit_softcapping is 0E0, this model's is 3E1");
}

TEST(Gemma2, AbsentFieldsHaveTheDefaultsOfItsClass) {
  JsonObject config = tiny_gemma("gemma2");
  for (const char* key : {"sliding_window", "query_pre_attn_scalar", "hidden_activation",
                          "hidden_act", "tie_word_embeddings"})
    config.erase(key);
  const DecoderSpec spec = read_spec(config);
  EXPECT_EQ(windows_in(spec), (std::vector<int64_t>{4096, 0}));
  EXPECT_EQ(spec.layers[0].attention().scale, 1.0 / 16);
  EXPECT_TRUE(spec.tied_head);
}

TEST(Gemma2, NamesNormsAsItsCheckpointsDo) {
  const Layout layout = read_spec(tiny_gemma("gemma2")).layout;
  const auto name = [&](const char* ours) {
    return layout.name(std::string("model.layers.1.") + ours);
  };
  EXPECT_EQ(name("post_self_attn_layernorm.weight"),
            "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(name("post_attention_layernorm.weight"),
            "model.layers.1.pre_feedforward_layernorm.weight");
  EXPECT_EQ(name("post_mlp_layernorm.weight"), "model.layers.1.post_feedforward_layernorm.weight");
  EXPECT_EQ(name("input_layernorm.weight"), "model.layers.1.input_layernorm.weight");
}

TEST(Gemma2, FieldsThatWouldChangeTheArithmeticAreRefused) {
  const JsonObject config = tiny_gemma("gemma2");
  EXPECT_EQ(refusal_of_gemma(config, "hidden_activation", "gelu"),
            "model: config field 'hidden_activation' is \"gelu\"; known: \"gelu_pytorch_tanh\"");
  EXPECT_EQ(refusal_of_gemma(config, "query_pre_attn_scalar", 0),
            "model: config field 'query_pre_attn_scalar' is 0, it must be at least 0.001 and at "
            "most 1000000");
  EXPECT_EQ(refusal_of_gemma(config, "attn_logit_softcapping", -5.0),
            "model: config field 'attn_logit_softcapping' is -5, it must be at least 0.001 and at "
            "most 1000000");
  EXPECT_EQ(refusal_of_gemma(config, "sliding_window", nullptr),
            "json: field 'sliding_window' is null, expected an integer");
  EXPECT_EQ(refusal_of_gemma(config, "layer_types", JsonArray{"full_attention"}),
            "model: config field 'layer_types' must list 2 layers");
  EXPECT_EQ(
      refusal_of_gemma(config, "layer_types", JsonArray{"full_attention", "chunked_attention"}),
      "model: config field 'layer_types' holds \"chunked_attention\"; known: "
      "\"full_attention\", \"sliding_attention\"");
  EXPECT_EQ(refusal_of_gemma(config, "use_bidirectional_attention", true),
            "model: config field 'use_bidirectional_attention' is true; it changes the "
            "arithmetic, and model_type 'gemma2' is computed without it");
}

// The text model's fields as hub files of models with pictures have them.
JsonObject gemma3_with_pictures() {
  JsonObject text = tiny_gemma("gemma3", 6);
  for (const char* key : {"architectures", "tie_word_embeddings", "rope_theta"}) text.erase(key);
  text["model_type"] = "gemma3_text";
  text["rope_scaling"] = JsonObject{{"factor", 8.0}, {"rope_type", "linear"}};
  return {{"model_type", "gemma3"},
          {"architectures", JsonArray{"Gemma3ForConditionalGeneration"}},
          {"text_config", text}};
}

void expect_ropes(const DecoderSpec& spec) {
  EXPECT_EQ(spec.rope.kind, nn::RopeKind::kLinear);
  EXPECT_EQ(spec.rope.factor, 8);
  EXPECT_EQ(spec.rope.theta, 1e6);
  EXPECT_EQ(spec.local_rope.kind, nn::RopeKind::kDefault);
  EXPECT_EQ(spec.local_rope.theta, 1e4);
  EXPECT_EQ(spec.local_rope.rotary_dim, 12);
}

TEST(Gemma3, TurnsLayersWithAWindowByARopeOfTheirOwn) {
  JsonObject config = gemma3_with_pictures()["text_config"].as_object();
  config["architectures"] = JsonArray{"Gemma3ForCausalLM"};
  config["attn_logit_softcapping"] = 50.0;  // not read by its class
  const DecoderSpec spec = read_spec(config);
  EXPECT_EQ(windows_in(spec), (std::vector<int64_t>{8, 8, 8, 8, 8, 0}));
  for (const LayerSpec& layer : spec.layers) {
    const AttentionSpec& a = layer.attention();
    EXPECT_TRUE(a.qk_norm);
    EXPECT_EQ(a.softcap, 0);
    EXPECT_EQ(a.local_rope, a.window > 0);
  }
  expect_ropes(spec);
  EXPECT_TRUE(spec.tied_head);
  EXPECT_EQ(spec.softcap, 0);
  config["sliding_window_pattern"] = 2;
  EXPECT_EQ(windows_in(read_spec(config)), (std::vector<int64_t>{8, 0, 8, 0, 8, 0}));
  config["rope_local_base_freq"] = 500.0;
  EXPECT_EQ(difference(spec, read_spec(config)),
            "rope_theta (of windowed layers) is 5E2, this model's is 1E4");
  // As transformers 5 writes it.
  for (const char* key : {"rope_scaling", "rope_local_base_freq"}) config.erase(key);
  config["rope_parameters"] = parse_json(
      R"({"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
          "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})",
      "rope");
  expect_ropes(read_spec(config));
}

TEST(Gemma3, OfAModelWithPicturesTheTextIsReadByTheNamesThatTheFilesHave) {
  JsonObject config = gemma3_with_pictures();
  DecoderSpec spec = read_spec(config);
  EXPECT_TRUE(spec.tied_head);
  Layout& layout = spec.layout;
  EXPECT_EQ(layout.name("model.norm.weight"), "model.language_model.norm.weight");
  for (const char* begin : {"", "model."}) {
    EXPECT_TRUE(layout.skips(std::string(begin) + "vision_tower.vision_model.head.weight"));
    EXPECT_TRUE(layout.skips(std::string(begin) + "multi_modal_projector.mm_soft_emb_norm.weight"));
  }
  layout.settle(std::vector<std::string>{"language_model.model.norm.weight"});
  EXPECT_EQ(layout.name("model.layers.0.post_mlp_layernorm.weight"),
            "language_model.model.layers.0.post_feedforward_layernorm.weight");
  EXPECT_EQ(layout.path("model.layers.0.mlp.up_proj"), "model.language_model.layers.0.mlp.up_proj");
  config["tie_word_embeddings"] = false;
  EXPECT_FALSE(read_spec(config).tied_head) << "the outer flag counts";
}

TEST(Gemma3, FieldsThatWouldChangeTheArithmeticAreRefused) {
  const JsonObject config = tiny_gemma("gemma3");
  EXPECT_EQ(refusal_of_gemma(config, "sliding_window", nullptr),
            "json: field 'sliding_window' is null, expected an integer");
  EXPECT_EQ(refusal_of_gemma(config, "rope_parameters", JsonObject{{"rope_theta", 5.0}}),
            "model: config field 'rope_parameters' has the field 'rope_theta'; known: "
            "\"full_attention\", \"sliding_attention\"");
  const Json half = JsonObject{
      {"sliding_attention", JsonObject{{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}}};
  EXPECT_EQ(refusal_of_gemma(config, "rope_parameters", half),
            "model: config field 'partial_rotary_factor' is 5E-1; known: 1E0");
  EXPECT_EQ(refusal_of_gemma(config, "use_bidirectional_attention", true),
            "model: config field 'use_bidirectional_attention' is true; it changes the "
            "arithmetic, and model_type 'gemma3' is computed without it");
}

TEST(Gemma3, AWrongValueOfOneOfItsRopesIsRefusedWithWhichOfThem) {
  const JsonObject config = tiny_gemma("gemma3");
  for (const std::string type : {"full_attention", "sliding_attention"}) {
    const JsonObject linear{{"rope_type", "linear"}, {"factor", -8}, {"rope_theta", 1e4}};
    EXPECT_EQ(refusal_of_gemma(config, "rope_parameters", JsonObject{{type, linear}}),
              "model: the config's rope has 'factor' -8, it must be finite and above 0 (the rope "
              "of " +
                  type + ")");
    const JsonObject still{{"rope_type", "default"}, {"rope_theta", 0}};
    EXPECT_EQ(refusal_of_gemma(config, "rope_parameters", JsonObject{{type, still}}),
              "model: config field 'rope_theta' is 0, it must be finite and above 1 (the rope of " +
                  type + ")");
  }
  for (const char* key : {"rope_theta", "rope_local_base_freq"}) {
    EXPECT_EQ(refusal_of_gemma(config, key, 0.5), std::string("model: config field '") + key +
                                                      "' is 0.5, it must be finite and above 1");
  }
}

TEST(Gemma, AnotherDeviceThanTheCpuIsRefusedByTheFamilysName) {
  for (const auto& [family, what] :
       {std::pair{"gemma2", "attention with attn_logit_softcapping (gemma2)"},
        std::pair{"gemma3", "an MLP with gelu (gemma3)"}}) {
    const DecoderSpec spec = read_spec(tiny_gemma(family));
    Parts parts(
        [](const std::string&, const std::vector<int64_t>& shape) {
          return at::empty(shape, at::device(at::kMeta));
        },
        spec.layout);
    EXPECT_EQ(error_of([&] { Layer(spec, spec.layers[0], parts); }),
              std::string("model: device is meta, but ") + what +
                  " runs on the CPU only in this version; set the device to cpu");
  }
}

// sqrt(48) is 6.9282, in bfloat16 6.9375; the head reads the embedding as it is.
TEST(Gemma, EmbeddingsScaleIsRoundedToTheirType) {
  JsonObject config = tiny_gemma("gemma2");
  const TinyModel directory(config);
  const Checkpoint files = Checkpoint::open(directory.path());
  DecoderSpec spec = read_spec(config), scaled = spec;
  scaled.embed_scale = 6.9375;
  const int64_t lengths[] = {5};
  Batch batch{.input_ids = at::arange(5), .rows = nn::pack(lengths)};
  const auto hidden = [&](const DecoderSpec& of, at::ScalarType type) {
    return Decoder(of, files, type).forward(batch);
  };
  EXPECT_TRUE(at::equal(hidden(spec, at::kBFloat16), hidden(scaled, at::kBFloat16)));
  EXPECT_FALSE(at::equal(hidden(spec, at::kFloat), hidden(scaled, at::kFloat)));
}

TEST(Gemma, TheEmbeddingsGradientIsCopiedOnceToBeScaled) {
  const JsonObject config = tiny_gemma("gemma2");
  const TinyModel directory(config);
  Decoder decoder(read_spec(config), Checkpoint::open(directory.path()), at::kBFloat16);
  const int64_t tokens = 200, lengths[] = {tokens};
  Batch batch{.input_ids = at::arange(tokens).remainder_(50), .rows = nn::pack(lengths)};
  batch.rows.segments[0].learn = true;
  std::optional<kernels::AllocationMeter> meter;
  int64_t peak = 0;  // between the last two pieces, the first layer and the embedding
  decoder.train_all([&](size_t) {
    if (meter) peak = meter->peak();
    meter.reset();
    meter.emplace();
  });
  for (int pass = 0; pass < 2; ++pass) {  // the first makes the buffers
    Tape tape{.batch = batch, .segments = {}};
    decoder.backward(tape, at::ones_like(decoder.forward_train(tape)));
    meter.reset();
  }
  const int64_t copy = tokens * 48 * 4;
  EXPECT_GE(peak, copy);
  EXPECT_LT(peak, copy + copy / 2);
}

}  // namespace
}  // namespace twinkle::model
