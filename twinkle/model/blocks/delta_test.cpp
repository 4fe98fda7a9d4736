// The mixer of linear layers, and the gate of attention's output, against their formulas spelled
// out in float64.
#include "twinkle/model/blocks/delta.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <memory>

#include "twinkle/model/blocks/attention.h"
#include "twinkle/model/tiny_model.h"

namespace twinkle::model {
namespace {

using Weights = std::map<std::string, at::Tensor>;

constexpr int64_t kDeltaWidth = 48;

Weights delta_weights() {
  Weights out;
  draw_delta(kDeltaWidth,
             [&](const char* name, const at::Tensor& value) { out[name] = value.to(at::kDouble); });
  return out;
}

template <class Mixer, class Spec>
struct Made {
  Made(const Spec& spec, const Weights& weights)
      : parts([&](const std::string& name, const std::vector<int64_t>& shape) {
          const at::Tensor value = weights.at(name);
          require(value.sizes() == shape, Code::kInternal, name, " ", value.sizes());
          return value;
        }),
        mixer(tiny_spec(tiny_config("delta")), spec, parts) {}
  Parts parts;
  Mixer mixer;
};

// Token by token, of one sequence.
at::Tensor plain_delta(const Weights& w, const at::Tensor& x, double eps) {
  const auto& [nk, nv, dk, dv, by_key_head] = kTinyDelta;
  const auto weight = [&](const char* name) { return w.at(std::string("linear_attn.") + name); };
  const auto project = [&](const char* name) { return at::linear(x, weight(name)); };
  const int64_t tokens = x.size(0);
  const at::Tensor in = project("in_proj_qkv.weight"), taps = weight("conv1d.weight");
  at::Tensor mixed = at::zeros_like(in);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < 4; ++j) {
      if (t - 3 + j >= 0) mixed[t] += in[t - 3 + j] * taps.select(1, 0).select(1, j);
    }
  }
  mixed = at::silu(mixed);
  const auto unit = [&](const at::Tensor& y) {
    const at::Tensor heads = y.reshape({tokens, nk, dk});
    return (heads / (heads.square().sum(-1, true) + 1e-6).sqrt()).repeat_interleave(nv / nk, 1);
  };
  const at::Tensor q = unit(mixed.slice(1, 0, nk * dk)) / std::sqrt(static_cast<double>(dk));
  const at::Tensor k = unit(mixed.slice(1, nk * dk, 2 * nk * dk));
  const at::Tensor v = mixed.slice(1, 2 * nk * dk).reshape({tokens, nv, dv});
  const at::Tensor beta = at::sigmoid(project("in_proj_b.weight"));
  const at::Tensor a = at::softplus(project("in_proj_a.weight") + weight("dt_bias"));
  const at::Tensor kept = (-weight("A_log").exp() * a).exp();
  at::Tensor s = at::zeros({nv, dk, dv}, x.options()),
             out = at::empty({tokens, nv, dv}, x.options());
  for (int64_t t = 0; t < tokens; ++t) {
    s = s * kept[t].view({nv, 1, 1});
    const at::Tensor seen = at::einsum("hkv,hk->hv", {s, k[t]});
    s = s + at::einsum("hk,hv->hkv", {k[t], (v[t] - seen) * beta[t].unsqueeze(1)});
    out[t] = at::einsum("hkv,hk->hv", {s, q[t]});
  }
  const at::Tensor normed =
      out / (out.square().mean(-1, true) + eps).sqrt() * weight("norm.weight");
  const at::Tensor z = project("in_proj_z.weight").view({tokens, nv, dv});
  return at::linear((normed * at::silu(z)).flatten(1), weight("out_proj.weight"));
}

Context context_of(const nn::Rows& rows, const nn::RopeTable& rope, KvCache* kv = nullptr) {
  return {.rows = rows, .rope = rope, .layer = 0, .kv = kv};
}

TEST(DeltaBlock, IsItsFormulaSpelledOutOfEachSequence) {
  at::manual_seed(1);
  const Weights weights = delta_weights();
  const Made<Delta, DeltaSpec> made(kTinyDelta, weights);
  const nn::Rows rows = nn::pack(std::vector<int64_t>{70, 3});
  const at::Tensor x = at::randn({73, kDeltaWidth}, at::kDouble);
  const at::Tensor y = made.mixer.forward(x, context_of(rows, {}));
  const double eps = tiny_spec(tiny_config("delta")).norm.eps;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 70}, {70, 73}}) {
    const at::Tensor want = plain_delta(weights, x.slice(0, begin, end), eps);
    EXPECT_LT((y.slice(0, begin, end) - want).abs().max().item<double>(), 1e-12);
  }
}

// The four projections' rows as the two of a checkpoint that has them by key head.
Weights by_key_head(const Weights& flat) {
  const auto& [nk, nv, dk, dv, _] = kTinyDelta;
  Weights out = flat;
  const auto rows = [&](const char* name, int64_t begin, int64_t count) {
    const std::string whole = std::string("linear_attn.") + name + ".weight";
    return flat.at(whole).slice(0, begin, begin + count).view({nk, count / nk, kDeltaWidth});
  };
  const int64_t keys = nk * dk, values = nv * dv;
  out["linear_attn.in_proj_qkvz.weight"] =
      at::cat({rows("in_proj_qkv", 0, keys), rows("in_proj_qkv", keys, keys),
               rows("in_proj_qkv", 2 * keys, values), rows("in_proj_z", 0, values)},
              1)
          .flatten(0, 1);
  out["linear_attn.in_proj_ba.weight"] =
      at::cat({rows("in_proj_b", 0, nv), rows("in_proj_a", 0, nv)}, 1).flatten(0, 1);
  return out;
}

TEST(DeltaBlock, ProjectionsByKeyHeadAreTheSameOnesInAnotherOrder) {
  at::manual_seed(4);
  const Weights flat = delta_weights();
  DeltaSpec spec = kTinyDelta;
  spec.by_key_head = true;
  const Made<Delta, DeltaSpec> made(kTinyDelta, flat), other(spec, by_key_head(flat));
  EXPECT_EQ(other.parts.linears.size(), 3u);
  const nn::Rows rows = nn::pack(std::vector<int64_t>{70, 3});
  const at::Tensor x = at::randn({73, kDeltaWidth}, at::kDouble).requires_grad_();
  const auto with_grad = [&](const Delta& mixer) {
    const at::Tensor y = mixer.forward(x, context_of(rows, {}));
    return std::pair(y, torch::autograd::grad({y.square().sum()}, {x})[0]);
  };
  const auto [y, dx] = with_grad(made.mixer);
  const auto [same_y, same_dx] = with_grad(other.mixer);
  EXPECT_LT((y - same_y).abs().max().item<double>(), 1e-12);
  EXPECT_LT((dx - same_dx).abs().max().item<double>(), 1e-10);
  EXPECT_GT(dx.abs().max().item<double>(), 0.1);
}

// One sequence's state.
struct OneState : KvCache {
  explicit OneState(const StateSpec& spec) : bytes(at::empty({spec.num_bytes}, at::kByte)) {}
  at::Tensor attend(size_t, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                    const nn::Rows&, const nn::AttentionOptions&) override {
    return {};
  }
  std::span<const kernels::DeltaRun> states(size_t) override { return {&run, 1}; }
  at::Tensor bytes;
  kernels::DeltaRun run;
};

TEST(DeltaBlock, SamplesFromItsStateWithTheBitsOfTraining) {
  at::manual_seed(2);
  const Made<Delta, DeltaSpec> made(kTinyDelta, delta_weights());
  const nn::Rows rows = nn::pack(std::vector<int64_t>{140});
  const at::Tensor x = at::randn({140, kDeltaWidth}, at::kDouble);
  const at::Tensor trained = made.mixer.forward(x, context_of(rows, {}));
  const at::NoGradGuard no_grad;
  OneState cache(made.mixer.state());
  int64_t begin = 0;
  for (const int64_t end : {1, 60, 61, 128, 140}) {
    const nn::Rows part = nn::pack(std::vector<int64_t>{end - begin});
    cache.run = {.row = 0,
                 .count = end - begin,
                 .first = begin,
                 .state = reinterpret_cast<std::byte*>(cache.bytes.data_ptr())};
    const at::Tensor y = made.mixer.forward(x.slice(0, begin, end), context_of(part, {}, &cache));
    EXPECT_TRUE(at::equal(y, trained.slice(0, begin, end))) << end;
    begin = end;
  }
}

TEST(AttentionBlock, AnOutputGateIsTheSecondHalfOfEachHeadsQueryRows) {
  at::manual_seed(3);
  const DecoderSpec decoder = tiny_spec(tiny_config("delta"));
  AttentionSpec spec = decoder.layers[0].attention();
  const int64_t heads = spec.num_heads, dim = spec.head_dim, q = heads * dim,
                kv = spec.num_kv_heads * dim;
  const auto draw = [](at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble) * 0.2; };
  Weights gated{{"self_attn.q_proj.weight", draw({2 * q, kDeltaWidth})},
                {"self_attn.k_proj.weight", draw({kv, kDeltaWidth})},
                {"self_attn.v_proj.weight", draw({kv, kDeltaWidth})},
                {"self_attn.o_proj.weight", draw({kDeltaWidth, q})},
                {"self_attn.q_norm.weight", draw({dim})},
                {"self_attn.k_norm.weight", draw({dim})}};
  ASSERT_TRUE(spec.output_gate);
  const Made<Attention, AttentionSpec> made(spec, gated);
  Weights plain = gated;
  const at::Tensor both = gated["self_attn.q_proj.weight"].view({heads, 2, dim, kDeltaWidth});
  plain["self_attn.q_proj.weight"] = both.select(1, 0).reshape({q, kDeltaWidth});
  plain["self_attn.o_proj.weight"] = at::eye(kDeltaWidth, at::kDouble);  // q is the width
  ASSERT_EQ(q, kDeltaWidth);
  spec.output_gate = false;
  const Made<Attention, AttentionSpec> without(spec, plain);
  const nn::Rows rows = nn::pack(std::vector<int64_t>{9, 4});
  const nn::RopeTable rope = nn::make_rope_table(decoder.rope, decoder.rope.rotary_dim, 16);
  const at::Tensor x = at::randn({13, kDeltaWidth}, at::kDouble);
  const at::Tensor mixed = without.mixer.forward(x, context_of(rows, rope));
  const at::Tensor gate = at::linear(x, both.select(1, 1).reshape({q, kDeltaWidth}));
  const at::Tensor want = at::linear(mixed * at::sigmoid(gate), gated["self_attn.o_proj.weight"]);
  const at::Tensor got = made.mixer.forward(x, context_of(rows, rope));
  EXPECT_LT((got - want).abs().max().item<double>(), 1e-12);
}

}  // namespace
}  // namespace twinkle::model
