// A head on which an adapter works: its logits, gradients and masks, in any company.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>

#include "twinkle/kernels/lora/lora.h"
#include "twinkle/nn/head/head.h"

namespace twinkle::nn {
namespace {

// One adapter, on the head, of sequences with slot 0.
struct HeadDelta : Delta {
  kernels::LoraFactors f;
  at::Tensor grad_a, grad_b;

  HeadDelta(const at::Tensor& a, const at::Tensor& b)
      : f{.a = a, .b = b, .scale = 0.5}, grad_a(at::zeros_like(a)), grad_b(at::zeros_like(b)) {
    f.repack(a.scalar_type());
  }
  std::vector<kernels::LoraPart> parts(const Rows& rows, bool learn) {
    std::vector<kernels::LoraPart> out;
    for (size_t s = 0; s < rows.segments.size(); ++s) {
      if (rows.segments[s].slot != 0) continue;
      out.push_back({.begin = rows.cu_seqlens[s],
                     .end = rows.cu_seqlens[s + 1],
                     .factors = &f,
                     .dropout = {rows.segments[s].key != 0 ? 0.3 : 0.0, rows.segments[s].key},
                     .first = rows.segments[s].first});
      if (learn && rows.segments[s].learn) out.back().grad_a = grad_a, out.back().grad_b = grad_b;
    }
    return out;
  }
  std::vector<at::Tensor> forward(const at::Tensor& x, const Rows& rows, at::Tensor& y) override {
    const auto mine = parts(rows, false);
    if (mine.empty()) return {};
    return {kernels::lora_forward(x.contiguous(), mine, y)};
  }
  void backward(const at::Tensor& dy, const at::Tensor& x, const std::vector<at::Tensor>& saved,
                const Rows& rows, at::Tensor& dx) override {
    const auto mine = parts(rows, true);
    if (!mine.empty()) kernels::lora_backward({dy, x.contiguous(), saved.at(0)}, mine, dx);
  }
};

// Sequences of 12, 40, 7 and 41 tokens, two thirds of which are scored; the second and the last
// have the adapter.
class AdaptedHead : public testing::Test {
 protected:
  struct Outcome {
    std::vector<float> logprobs;
    at::Tensor dhidden, grad_a, grad_b;
  };
  static constexpr int64_t kVocab = 50, kInputs = 24;

  AdaptedHead() { at::manual_seed(11); }

  // Only these sequences.
  Outcome run(const std::vector<size_t>& sequences, int64_t chunk, uint64_t key = 0) {
    Rows rows;
    std::vector<at::Tensor> hidden;
    Targets targets;
    for (const size_t s : sequences) {
      const int64_t begin = rows.num_tokens();
      for (int64_t t = 0; t < kLengths[s]; ++t) {
        if (t % 3 == 1) continue;
        targets.rows.push_back(begin + t);
        targets.ids.push_back(static_cast<int32_t>((7 * t + static_cast<int64_t>(s)) % kVocab));
      }
      rows.add(kLengths[s], {s % 2 ? 0 : -1, key == 0 ? 0 : key + s, true});
      hidden.push_back(hidden_[s]);
    }
    HeadDelta delta(a_, b_);
    const Linear head{.weight = weight_, .delta = &delta};
    const auto grad = [](int64_t, std::span<const float> logprobs, std::span<float> out) {
      for (size_t i = 0; i < out.size(); ++i) out[i] = 0.1f * logprobs[i];
    };
    const HeadOutput out =
        head_backward(at::cat(hidden), head, targets, grad, rows, {.chunk = chunk});
    EXPECT_EQ(head_forward(at::cat(hidden), head, targets, rows).logprobs, out.logprobs);
    return {out.logprobs, out.dhidden, delta.grad_a, delta.grad_b};
  }

  static constexpr std::array<int64_t, 4> kLengths{12, 40, 7, 41};
  const at::Tensor weight_ = at::randn({kVocab, kInputs}) * 0.3, a_ = at::randn({3, kInputs}),
                   b_ = at::randn({kVocab, 3}) * 0.3;
  const std::vector<at::Tensor> hidden_{at::randn({12, kInputs}), at::randn({40, kInputs}),
                                        at::randn({7, kInputs}), at::randn({41, kInputs})};
};

TEST_F(AdaptedHead, HasTheSameBitsInAnyCompany) {
  for (const uint64_t key : {0, 5}) {
    for (const int64_t chunk : {1, 9, 16, 30, 200}) {
      const Outcome all = run({0, 1, 2, 3}, chunk, key), alone = run({1, 3}, chunk, key);
      EXPECT_TRUE(at::equal(all.grad_a, alone.grad_a)) << chunk << ' ' << key;
      EXPECT_TRUE(at::equal(all.grad_b, alone.grad_b)) << chunk << ' ' << key;
      EXPECT_TRUE(at::equal(all.dhidden.slice(0, 12, 52), alone.dhidden.slice(0, 0, 40)));
      EXPECT_TRUE(at::equal(all.dhidden.slice(0, 59), alone.dhidden.slice(0, 40)));
    }
  }
}

TEST_F(AdaptedHead, AMaskIsThatOfTheTokensWhateverTheChunk) {
  const Outcome one = run({0, 1, 2, 3}, 1, 5), all = run({0, 1, 2, 3}, 500, 5);
  EXPECT_EQ(one.logprobs, all.logprobs);
  EXPECT_NE(one.logprobs, run({0, 1, 2, 3}, 500).logprobs);
}

TEST_F(AdaptedHead, GivesAutogradsGradients) {
  const Outcome got = run({1, 3}, 16);
  at::Tensor x = at::cat({hidden_[1], hidden_[3]}).to(at::kDouble).requires_grad_(true),
             a = a_.to(at::kDouble).requires_grad_(true),
             b = b_.to(at::kDouble).requires_grad_(true);
  const at::Tensor logp = at::log_softmax(
      at::linear(x, weight_.to(at::kDouble)) + 0.5 * at::linear(at::linear(x, a), b), 1);
  std::vector<int64_t> rows, ids;
  for (const int64_t s : {1, 3}) {
    for (int64_t t = 0; t < kLengths[static_cast<size_t>(s)]; ++t) {
      if (t % 3 == 1) continue;
      rows.push_back((s == 1 ? 0 : 40) + t);
      ids.push_back((7 * t + s) % kVocab);
    }
  }
  const at::Tensor picked = logp.index({at::tensor(rows), at::tensor(ids)});
  const auto want = torch::autograd::grad({picked}, {x, a, b}, {0.1 * picked.detach()});
  const auto near = [](const at::Tensor& mine, const at::Tensor& theirs) {
    return (mine.to(at::kDouble) - theirs).abs().max().item<double>() <
           1e-5 * theirs.abs().max().item<double>();
  };
  EXPECT_TRUE(near(got.dhidden, want[0]));
  EXPECT_TRUE(near(got.grad_a, want[1]));
  EXPECT_TRUE(near(got.grad_b, want[2]));
}

TEST_F(AdaptedHead, LogitsAreThoseOfTheLogProbabilitiesAndTheirGradientIsAutograds) {
  HeadDelta delta(a_, b_);
  const Linear head{.weight = weight_, .delta = &delta};
  const LogitsOf of{2, {0, 0, true}};
  std::vector<float> out(12 * kVocab);
  head_logits(hidden_[0], head, of, out);
  at::Tensor x = hidden_[0].clone().requires_grad_(true), a = a_.clone().requires_grad_(true),
             b = b_.clone().requires_grad_(true), g = at::randn({12, kVocab});
  const at::Tensor want = (at::linear(x, weight_) + 0.5 * at::linear(at::linear(x, a), b)) / 2;
  EXPECT_TRUE(
      at::allclose(at::tensor(at::ArrayRef<float>(out)).view({12, kVocab}), want, 1e-4, 1e-5));
  const auto slopes = torch::autograd::grad({want}, {x, a, b}, {g});
  at::Tensor dhidden = at::zeros_like(x);
  const at::NoGradGuard no_grad;
  head_logits_backward(hidden_[0], head, of,
                       std::span(g.const_data_ptr<float>(), static_cast<size_t>(g.numel())),
                       dhidden);
  EXPECT_TRUE(at::allclose(dhidden, slopes[0], 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(delta.grad_a, slopes[1], 1e-4, 1e-5));
  EXPECT_TRUE(at::allclose(delta.grad_b, slopes[2], 1e-4, 1e-5));
}

}  // namespace
}  // namespace twinkle::nn
