#include "twinkle/model/mixers/latent.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/allocation_meter_for_test.h"

namespace twinkle::model {
namespace {

constexpr int64_t kLatentWidth = 48;

LatentSpec latent_spec(int64_t q_rank, bool bias = false) {
  return {.num_heads = 4,
          .q_rank = q_rank,
          .kv_rank = 24,
          .nope_dim = 16,
          .rope_dim = 8,
          .value_dim = 12,
          .bias = bias,
          .scale = 0.3};
}

// A block of random weights.
struct DrawnLatent {
  explicit DrawnLatent(const LatentSpec& spec)
      : parts([this](const std::string& name, const std::vector<int64_t>& shape) {
          weights[name] = at::randn(shape) / std::sqrt(static_cast<double>(shape.back()));
          if (shape.size() == 1) weights[name] = 1 + 0.1 * weights[name];
          return weights[name];
        }) {
    parts.path = "model.layers.1.";
    DecoderSpec decoder;
    decoder.hidden_size = kLatentWidth;
    decoder.norm.eps = 0.1;  // not that of the inner norms
    block.emplace(decoder, spec, parts);
    rope = nn::make_rope_table({.rotary_dim = 8, .interleaved = true}, 8, 1024);
  }
  at::Tensor at(const std::string& name) const {
    const auto found = weights.find("model.layers.1.self_attn." + name);
    return found == weights.end() ? at::Tensor() : found->second;
  }
  at::Tensor linear(const at::Tensor& x, const std::string& name) const {
    const at::Tensor y = x.matmul(at(name + ".weight").t());
    return at(name + ".bias").defined() ? y + at(name + ".bias") : y;
  }
  at::Tensor normed(const at::Tensor& x, const std::string& name) const {
    return x * (x.pow(2).mean(-1, true) + 1e-6).rsqrt() * at(name + ".weight");
  }
  at::Tensor forward(const at::Tensor& x, const nn::Rows& rows) const {
    return block->forward(x, {.rows = rows, .rope = rope});
  }
  std::map<std::string, at::Tensor> weights;
  Parts parts;
  nn::RopeTable rope;
  std::optional<Latent> block;
};

// Neighbours turn together.
at::Tensor turned(const at::Tensor& x, const nn::RopeTable& rope) {
  const at::Tensor cos = rope.cos.slice(0, 0, x.size(0)).unsqueeze(1),
                   sin = rope.sin.slice(0, 0, x.size(0)).unsqueeze(1);
  const auto pairs = x.unflatten(-1, {-1, 2}).unbind(-1);
  return at::stack({pairs[0] * cos - pairs[1] * sin, pairs[1] * cos + pairs[0] * sin}, -1)
      .flatten(-2);
}

// One sequence, with the keys and values of every head.
at::Tensor latent_by_torch(const at::Tensor& x, const DrawnLatent& drawn, const LatentSpec& spec) {
  const int64_t tokens = x.size(0);
  const at::Tensor q =
      (spec.q_rank == 0
           ? drawn.linear(x, "q_proj")
           : drawn.linear(drawn.normed(drawn.linear(x, "q_a_proj"), "q_a_layernorm"), "q_b_proj"))
          .view({tokens, 4, 24});
  const at::Tensor kv = drawn.linear(x, "kv_a_proj_with_mqa");
  const at::Tensor heads =
      drawn.linear(drawn.normed(kv.slice(1, 0, 24), "kv_a_layernorm"), "kv_b_proj")
          .view({tokens, 4, 28});
  const at::Tensor shared = turned(kv.slice(1, 24).unsqueeze(1), drawn.rope).expand({-1, 4, -1});
  const at::Tensor query = at::cat({q.slice(2, 0, 16), turned(q.slice(2, 16), drawn.rope)}, 2),
                   key = at::cat({heads.slice(2, 0, 16), shared}, 2);
  const at::Tensor hidden = at::ones({tokens, tokens}, at::kBool).triu(1);
  const at::Tensor scores = (at::einsum("thd,shd->hts", {query, key}) * spec.scale)
                                .masked_fill(hidden, -std::numeric_limits<float>::infinity());
  const at::Tensor mixed = at::einsum("hts,shv->thv", {scores.softmax(-1), heads.slice(2, 16)});
  return drawn.linear(mixed.flatten(1), "o_proj");
}

TEST(Latent, IsAttentionOfEveryHeadsKeysAndValues) {
  at::manual_seed(1);
  for (const LatentSpec& spec : {latent_spec(0), latent_spec(20), latent_spec(20, true)}) {
    const DrawnLatent drawn(spec);
    const nn::Rows rows = nn::pack(std::vector<int64_t>{70, 9});
    const at::Tensor x = at::randn({79, kLatentWidth}).requires_grad_();
    const at::Tensor want = at::cat({latent_by_torch(x.slice(0, 0, 70), drawn, spec),
                                     latent_by_torch(x.slice(0, 70), drawn, spec)});
    const at::Tensor got = drawn.forward(x, rows), g = at::randn(want.sizes());
    EXPECT_TRUE(at::allclose(got, want, 1e-4, 1e-5)) << spec.q_rank << spec.bias;
    const auto dx = torch::autograd::grad({got}, {x}, {g}),
               dwant = torch::autograd::grad({want}, {x}, {g});
    EXPECT_TRUE(at::allclose(dx[0], dwant[0], 1e-3, 1e-5)) << spec.q_rank << spec.bias;
  }
}

TEST(Latent, KeepsTheLatentAndTheRotatedPartOfATokenOnce) {
  const StateSpec state = DrawnLatent(latent_spec(0)).block->state();
  EXPECT_EQ(state.token_size(), 24 + 8);
  EXPECT_EQ(state.num_heads, 1);
}

TEST(Latent, TheBytesForBackwardAreThoseThatAreAllocated) {
  for (const int64_t q_rank : {0, 20}) {
    for (const bool train : {false, true}) {
      const DrawnLatent drawn(latent_spec(q_rank));
      nn::WeightGrad grad;
      for (const NamedLinear& linear : drawn.parts.linears)
        linear.linear->weight_grad = train ? &grad : nullptr;
      const nn::Rows rows = nn::pack(std::vector<int64_t>{900});
      at::Tensor x = at::randn({900, kLatentWidth}).requires_grad_(), y;
      const kernels::AllocationMeter meter;
      y = drawn.forward(x, rows);
      const int64_t result = y.nbytes(), input = train ? x.nbytes() : 0;
      EXPECT_NEAR(static_cast<double>(drawn.block->saved_bytes(rows)) /
                      static_cast<double>(meter.now() - result + input),
                  1.0, 0.01)
          << q_rank << train;
    }
  }
}

TEST(Latent, AnotherDeviceThanTheCpuIsRefusedByTheFamilysName) {
  Parts parts([](const std::string&, const std::vector<int64_t>& shape) {
    return at::empty(shape, at::device(at::kMeta));
  });
  DecoderSpec decoder;
  decoder.family = "deepseek_v2";
  decoder.hidden_size = kLatentWidth;
  EXPECT_EQ(
      invalid_of([&] { Latent(decoder, latent_spec(0), parts); }),
      "model: device is meta, but latent attention (deepseek_v2) runs on the CPU only in this "
      "version; set the device to cpu");
}

TEST(Latent, AdaptersHaveNoDropoutOnKvBAlone) {
  const DrawnLatent drawn(latent_spec(20));
  for (const NamedLinear& linear : drawn.parts.linears)
    EXPECT_EQ(linear.drops, !linear.path.ends_with("kv_b_proj")) << linear.path;
}

}  // namespace
}  // namespace twinkle::model
