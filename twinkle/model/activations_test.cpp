// The activations that Decoder::forward_train keeps: their bytes against what ATen really
// allocates, and that leaving some out changes no bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "twinkle/kernels/allocation_meter_for_test.h"
#include "twinkle/model/decoder.h"
#include "twinkle/model/family.h"
#include "twinkle/model/tiny_families.h"

namespace twinkle::model {
namespace {

constexpr int64_t kLayers = 4;

JsonObject four_layers(const std::string& family) {
  JsonObject config = tiny_config(family);
  config["num_hidden_layers"] = kLayers;
  return config;
}

// Four layers alike, of what the family has besides llama's.
JsonObject four_equal_layers(const std::string& family) {
  const bool delta = family == "qwen3_next", latent = family == "deepseek_v3";
  if (!delta && !latent && family != "qwen3_moe" && family != "gpt_oss") return four_layers(family);
  JsonObject config = tiny_family(family);
  config["num_hidden_layers"] = kLayers;
  if (latent) config["first_k_dense_replace"] = 0;
  if (delta) config["layer_types"] = JsonArray(kLayers, "linear_attention");
  return config;
}

Batch batch_of(const std::vector<int64_t>& lengths) {
  Batch batch{.input_ids = {}, .rows = nn::pack(lengths)};
  batch.input_ids = at::arange(batch.rows.num_tokens(), at::kLong).mul_(37).remainder_(131);
  for (nn::Segment& segment : batch.rows.segments) segment.learn = true;
  return batch;
}

using Case = std::tuple<std::string, at::ScalarType>;

class Activations : public testing::TestWithParam<Case> {
 protected:
  Activations()
      : config_(four_equal_layers(std::get<0>(GetParam()))),
        directory_(config_),
        decoder_(read_spec(config_), Checkpoint::open(directory_.path()), std::get<1>(GetParam())) {
    const int64_t tokens = batch_of(lengths_).rows.num_tokens();
    const int64_t row = 48 * static_cast<int64_t>(at::elementSize(decoder_.dtype()));
    inputs_ = (kLayers + 2) * row * tokens;
    if (const Json* chosen = find(Json(config_), "num_experts_per_tok"))
      places_ = kLayers * tokens * chosen->to_number<int64_t>() * 16;
  }

  // Hidden states and all gradients under a limit; what the tape held in between.
  struct Run {
    std::vector<at::Tensor> values;
    int64_t held = 0, recomputed = 0;
  };
  Run run(int64_t limit) {
    decoder_.limit_activations(limit);
    decoder_.zero_grads();
    Run out;
    const int64_t before = decoder_.num_recomputed_layers();
    Tape tape{.batch = batch_of(lengths_), .segments = {}};
    {
      const kernels::AllocationMeter meter;
      out.values.push_back(decoder_.forward_train(tape));
      out.held = meter.now();
    }
    decoder_.backward(tape, at::ones_like(out.values[0]).mul_(0.25));
    for (const at::Tensor& g : decoder_.grads()) {
      if (g.defined()) out.values.push_back(g.clone());
    }
    out.recomputed = decoder_.num_recomputed_layers() - before;
    return out;
  }
  int64_t whole() { return decoder_.activation_bytes(batch_of(lengths_)); }

  const JsonObject config_;
  const TinyModel directory_;
  Decoder decoder_;
  const std::vector<int64_t> lengths_{90, 1, 60};
  int64_t inputs_;      // bytes of the segments' inputs
  int64_t places_ = 0;  // counted bytes that are no tensors': which token is where at which expert
};

TEST_P(Activations, TheComputedBytesAreThoseThatAreAllocated) {
  for (const bool train : {false, true}) {
    if (train) decoder_.train_all();
    const auto held = static_cast<double>(run(0).held + places_);
    EXPECT_NEAR(static_cast<double>(whole()) / held, 1.0, 0.01) << train;
  }
}

TEST_P(Activations, EveryLimitGivesTheSameBitsAndHoldsWhereTheInputsFit) {
  decoder_.train_all();
  const Run want = run(0);
  EXPECT_EQ(want.recomputed, 0);
  const int64_t layer = (whole() - inputs_) / kLayers;
  for (const int64_t kept : {kLayers, int64_t{3}, int64_t{1}, int64_t{0}}) {
    const int64_t limit = inputs_ + kept * layer + layer / 2;
    const Run got = run(limit);
    EXPECT_EQ(got.recomputed, kLayers - kept);
    EXPECT_LE(got.held, limit);
    EXPECT_LT(got.held, want.held + 1 - (kLayers - kept) * layer * 9 / 10);
    ASSERT_EQ(got.values.size(), want.values.size());
    for (size_t i = 0; i < got.values.size(); ++i)
      EXPECT_TRUE(at::equal(got.values[i], want.values[i])) << kept << " " << i;
  }
}

TEST_P(Activations, InputsThatAloneExceedTheLimitAreKeptAll) {
  decoder_.train_all();
  const Run want = run(0), got = run(1);
  EXPECT_EQ(got.recomputed, kLayers);
  EXPECT_NEAR(static_cast<double>(got.held) / static_cast<double>(inputs_), 1.0, 0.05);
  EXPECT_TRUE(at::equal(got.values[0], want.values[0]));
}

INSTANTIATE_TEST_SUITE_P(
    All, Activations,
    testing::Values(Case{"llama", at::kFloat}, Case{"llama", at::kBFloat16},
                    Case{"qwen2", at::kBFloat16}, Case{"qwen3", at::kBFloat16},
                    Case{"qwen3", at::kDouble}, Case{"glm4", at::kFloat},
                    Case{"internlm2", at::kBFloat16}, Case{"qwen3_moe", at::kFloat},
                    Case{"deepseek_v3", at::kBFloat16}, Case{"qwen3_next", at::kFloat},
                    Case{"gpt_oss", at::kBFloat16}, Case{"gemma2", at::kFloat},
                    Case{"gemma3", at::kBFloat16}, Case{"phi3", at::kBFloat16}));

// Half of each weight's sides, but for the vocabulary's and a head's: a decoder of half the width
// with half the heads, whose spec says otherwise.
class Halves : public Borders {
 public:
  at::Tensor weight(const WeightSource& source, const PieceWeight& weight,
                    WeightMemory* memory) override {
    at::Tensor out = Borders::weight(source, weight, memory);
    for (int64_t dim = 0; dim < out.dim(); ++dim) {
      const int64_t size = out.size(dim);
      if (size != 131 && size != 12) out = out.narrow(dim, 0, size / 2);
    }
    return out.contiguous();
  }
};

TEST(Activation, BytesAndStatesAreOfTheWeightsThatThereAre) {
  for (const char* family : {"llama", "qwen2", "qwen3", "internlm2"}) {
    const JsonObject config = four_layers(family);
    const TinyModel directory(config);
    Halves halves;
    Decoder decoder(read_spec(config), Checkpoint::open(directory.path()), at::kBFloat16, at::kCPU,
                    halves);
    Tape tape{.batch = batch_of({90, 1, 60}), .segments = {}};
    const auto counted = static_cast<double>(decoder.activation_bytes(tape.batch));
    const kernels::AllocationMeter meter;
    EXPECT_EQ(decoder.forward_train(tape).size(1), 24);
    EXPECT_NEAR(counted / static_cast<double>(meter.now()), 1.0, 0.01) << family;
    for (const StateSpec& state : decoder.states()) EXPECT_EQ(state.num_heads, 1) << family;
  }
}

// Half of the heads, and of each expert's width; latents are of all heads.
class HalfOfTheHeads : public Borders {
 public:
  at::Tensor weight(const WeightSource& source, const PieceWeight& weight,
                    WeightMemory* memory) override {
    const at::Tensor out = Borders::weight(source, weight, memory);
    const auto half = [&](int64_t dim) {
      return out.narrow(dim, 0, out.size(dim) / 2).contiguous();
    };
    const auto is = [&](const char* part) { return weight.name.find(part) != std::string::npos; };
    if (is("q_b_proj") || is("kv_b_proj")) return half(0);
    if (is("o_proj")) return half(1);
    if (is("mlp.experts.gate_up_proj")) return half(1);
    if (is("mlp.experts.down_proj")) return half(2);
    return out;
  }
};

TEST(Activation, BytesOfLatentAttentionAndExpertsAreOfTheWeightsThatThereAre) {
  const JsonObject config = four_equal_layers("deepseek_v3");
  const TinyModel directory(config);
  HalfOfTheHeads halves;
  Decoder decoder(read_spec(config), Checkpoint::open(directory.path()), at::kBFloat16, at::kCPU,
                  halves);
  Tape tape{.batch = batch_of({90, 1, 60}), .segments = {}};
  const auto counted = static_cast<double>(decoder.activation_bytes(tape.batch));
  const int64_t places = kLayers * tape.batch.rows.num_tokens() * 3 * 16;  // as places_
  const kernels::AllocationMeter meter;
  decoder.forward_train(tape);
  EXPECT_NEAR(counted / static_cast<double>(meter.now() + places), 1.0, 0.01);
}

// A model of unequal layers; the first sequence has more than one chunk.
TEST(Activation, OfLinearLayersCountsAndIsComputedAgainWithTheSameBits) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const JsonObject config = four_layers("delta");
    const TinyModel directory(config);
    Decoder decoder(tiny_spec(config), Checkpoint::open(directory.path()), dtype);
    std::vector<at::Tensor> want;
    for (const int64_t limit : {0, 1}) {
      for (const bool train : {false, true}) {
        if (train) decoder.train_all();
        decoder.limit_activations(limit);
        Tape tape{.batch = batch_of({90, 1, 60}), .segments = {}};
        const auto counted = static_cast<double>(decoder.activation_bytes(tape.batch));
        const kernels::AllocationMeter meter;
        const at::Tensor hidden = decoder.forward_train(tape);
        const auto held = static_cast<double>(meter.now());
        if (limit == 0) {
          EXPECT_NEAR(counted / held, 1.0, 0.01) << train;
        }
        decoder.backward(tape, at::ones_like(hidden).mul_(0.25));
      }
      std::vector<at::Tensor> got;
      for (const at::Tensor& g : decoder.grads()) {
        if (g.defined()) got.push_back(g.clone());
      }
      decoder.freeze();
      if (limit == 0) {
        want = got;
        continue;
      }
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
    }
  }
}

TEST(Activation, ALimitBelowZeroIsRefused) {
  const TinyModel directory;
  Decoder decoder(read_spec(tiny_config()), Checkpoint::open(directory.path()), at::kFloat);
  EXPECT_EQ(error_of([&] { decoder.limit_activations(-1); }),
            "model: activation_bytes is -1, it must be at least 0, which means no limit");
}

}  // namespace
}  // namespace twinkle::model
