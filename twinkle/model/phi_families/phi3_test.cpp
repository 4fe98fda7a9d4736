#include <gtest/gtest.h>

#include "twinkle/model/decoder.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

// As the hub's files of 128k models have it; 8 of 16 dims of a head turn.
JsonObject tiny_phi3() {
  JsonObject config = tiny_config("phi3");
  config["head_dim"] = 16;
  config["sliding_window"] = 40;
  config["partial_rotary_factor"] = 0.5;
  config["original_max_position_embeddings"] = 64;
  config["rope_scaling"] = parse_json(
      R"({"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3],
          "long_factor": [1.0, 2, 4.0, 8.0]})",
      "rope");
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attention_dropout"}) config[key] = 0.0;
  return config;
}

std::string refusal_of_phi3(JsonObject config, const char* key, const Json& value) {
  config[key] = value;
  return error_of([&] { read_spec(config); });
}

TEST(Phi3, HasFusedProjectionsAndAWindowOnAllLayersOrOnNone) {
  JsonObject config = tiny_phi3();
  for (const LayerSpec& layer : read_spec(config).layers) {
    EXPECT_EQ(layer.attention().window, 40);
    EXPECT_EQ(layer.attention().projections, Projections::kStacked);
    EXPECT_TRUE(layer.gated_mlp().fused);
  }
  config["sliding_window"] = nullptr;
  EXPECT_EQ(read_spec(config).layers[0].attention().window, 0);
  config.erase("rope_scaling");
  const nn::RopeSpec plain = read_spec(config).rope;
  EXPECT_EQ(plain.kind, nn::RopeKind::kDefault);
  EXPECT_EQ(plain.rotary_dim, 8);
}

TEST(Phi3, LongropeIsReadByAllOfItsNames) {
  for (const char* type : {"longrope", "su", "yarn"}) {
    JsonObject config = tiny_phi3();
    config["rope_scaling"].as_object()["type"] = type;
    config["rope_theta"] = 5000.0;
    const nn::RopeSpec rope = read_spec(config).rope;
    EXPECT_EQ(rope.kind, nn::RopeKind::kLongRope) << type;
    EXPECT_EQ(rope.theta, 5000);
    EXPECT_EQ(rope.rotary_dim, 8);
    EXPECT_EQ(rope.original_max_position, 64);
    EXPECT_EQ(rope.factor, 256.0 / 64);
    EXPECT_EQ(rope.short_factor, (std::vector<double>{1, 1.1, 1.2, 1.3}));
    EXPECT_EQ(rope.long_factor, (std::vector<double>{1, 2, 4, 8}));
  }
  JsonObject config = tiny_phi3(), other = config;
  config["original_max_position_embeddings"] = nullptr;
  EXPECT_EQ(error_of([&] { read_spec(config); }),
            "json: field 'original_max_position_embeddings' is null, expected an integer");
  config.erase("original_max_position_embeddings");
  EXPECT_EQ(read_spec(config).rope.original_max_position, 4096);
  other["rope_scaling"].as_object()["long_factor"].as_array()[2] = 5;
  EXPECT_EQ(difference(read_spec(tiny_phi3()), read_spec(other)),
            "long_factor is [1E0,2E0,5E0,8E0], this model's is [1E0,2E0,4E0,8E0]");
}

TEST(Phi3, WhatCannotBeMeantIsRefused) {
  const JsonObject config = tiny_phi3();
  const auto with_rope = [&](const char* key, const Json& value) {
    JsonObject rope = config.at("rope_scaling").as_object();
    rope[key] = value;
    return refusal_of_phi3(config, "rope_scaling", rope);
  };
  EXPECT_EQ(with_rope("long_factor", JsonArray{1.0, 2.0}),
            "model: the config's rope must list 4 numbers as 'long_factor', one for each pair of a "
            "head's dims that turn");
  EXPECT_EQ(with_rope("short_factor", JsonArray{1.0, 2.0, "x", 1.0}),
            "model: the config's rope has \"x\" in 'short_factor', it must be a number");
  EXPECT_EQ(with_rope("long_factor", JsonArray{1.0, 2.0, 0.0, 1.0}),
            "model: the config's rope has 0 in 'long_factor', it must be finite and above 0");
  EXPECT_EQ(with_rope("factor", -4),
            "model: the config's rope has 'factor' -4, it must be finite and above 0");
  EXPECT_EQ(refusal_of_phi3(config, "original_max_position_embeddings", 1),
            "model: config field 'original_max_position_embeddings' is 1, with longrope it must be "
            "at least 2");
  EXPECT_EQ(with_rope("short_mscale", 1.1),
            "model: the config's rope has the field 'short_mscale', which may change the "
            "arithmetic and is not supported");
  EXPECT_EQ(with_rope("original_max_position_embeddings", 128),
            "model: the config's rope has original_max_position_embeddings 128, but the field "
            "beside it, which transformers takes, is 64");
  EXPECT_EQ(with_rope("attention_factor", -1),
            "model: the config's rope has 'attention_factor' -1, it must be at least 0.001 and at "
            "most 1000000");
  EXPECT_EQ(
      refusal_of_phi3(config, "rope_scaling", JsonObject{{"type", "linear"}, {"factor", 2.0}}),
      "model: the config's rope is of type 'linear'; phi3 has: default, longrope, su, yarn "
      "(the last two are longrope's old names)");
  EXPECT_EQ(refusal_of_phi3(config, "resid_pdrop", 0.1),
            "model: resid_pdrop is 0.1; only 0 is supported: set it to 0 in config.json");
}

// A sequence beyond the line is computed as one that was long from its first token on.
TEST(Phi3, AllOfASequencesTokensTurnByItsLength) {
  const JsonObject config = tiny_phi3();
  const TinyModel directory(config);
  Decoder decoder(read_spec(config), Checkpoint::open(directory.path()), at::kFloat);
  const nn::RopeSpec& rope = decoder.spec().rope;
  const auto hidden = [&](int64_t length, int64_t becomes) {
    Batch batch{.input_ids = at::arange(length), .rows = nn::pack(std::vector<int64_t>{length})};
    batch.rows.position_ids.add_(rope.first_row(becomes));
    return decoder.forward(batch);
  };
  const at::Tensor whole = hidden(70, 70), begun = hidden(60, 70), small = hidden(60, 60);
  EXPECT_TRUE(at::equal(whole.slice(0, 0, 60), begun));
  EXPECT_GT((begun - small).abs().max().item<double>(), 0.01);
  EXPECT_EQ(error_of([&] { hidden(257, 257); }),
            "model: position 256 is beyond the model's max_position_embeddings, 256");
}

}  // namespace
}  // namespace twinkle::model
