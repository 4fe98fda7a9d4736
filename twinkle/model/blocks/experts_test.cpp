#include "twinkle/model/blocks/experts.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>

#include "twinkle/base/error_for_test.h"
#include "twinkle/kernels/allocation_meter_for_test.h"

namespace twinkle::model {
namespace {

constexpr int64_t kWidth = 48;

ExpertsSpec some_spec() {
  ExpertsSpec spec{.num_experts = 6, .intermediate_size = 20};
  spec.route.top_k = 2;
  spec.route.normalise = true;
  return spec;
}

ExpertsSpec with_shared(bool gate) {
  ExpertsSpec spec = some_spec();
  spec.shared_size = 28;
  spec.shared_gate = gate;
  if (!gate) spec.shared_name = "shared_experts";
  return spec;
}

// A block of random weights.
struct DrawnExperts {
  explicit DrawnExperts(const ExpertsSpec& spec)
      : parts([this](const std::string& name, const std::vector<int64_t>& shape) {
          weights[name] = at::randn(shape) / std::sqrt(static_cast<double>(shape.back()));
          return weights[name];
        }) {
    parts.path = "model.layers.1.";
    DecoderSpec decoder;
    decoder.hidden_size = kWidth;
    block.emplace(decoder, spec, parts);
  }
  const at::Tensor& at(const std::string& name) const {
    return weights.at("model.layers.1.mlp." + name);
  }
  at::Tensor forward(const at::Tensor& x, const nn::Rows& rows) const {
    const nn::RopeTable rope;
    return block->forward(x, {.rows = rows, .rope = rope});
  }
  std::map<std::string, at::Tensor> weights;
  Parts parts;
  std::optional<RoutedExperts> block;
};

at::Tensor swiglu(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& up,
                  const at::Tensor& down) {
  return (at::silu(x.matmul(gate.t())) * x.matmul(up.t())).matmul(down.t());
}

// By torch, every expert for every row.
at::Tensor by_torch(const at::Tensor& x, const DrawnExperts& drawn, const ExpertsSpec& spec) {
  at::Tensor scores = at::softmax(x.matmul(drawn.at("gate.weight").t()), -1);
  at::Tensor choice = scores;
  if (spec.correction) choice = scores + drawn.at("gate.e_score_correction_bias");
  const at::Tensor ids = std::get<1>(choice.topk(spec.route.top_k, -1));
  at::Tensor weights = scores.gather(1, ids);
  weights = at::zeros_like(scores).scatter(1, ids, weights / weights.sum(-1, true));
  at::Tensor out = at::zeros_like(x);
  for (int64_t e = 0; e < spec.num_experts; ++e) {
    const auto both = drawn.at("experts.gate_up_proj")[e].chunk(2);
    out += swiglu(x, both[0], both[1], drawn.at("experts.down_proj")[e]) *
           weights.select(1, e).unsqueeze(1);
  }
  if (spec.shared_size == 0) return out;
  const std::string path = std::string(spec.shared_name) + ".";
  at::Tensor shared =
      swiglu(x, drawn.at(path + "gate_proj.weight"), drawn.at(path + "up_proj.weight"),
             drawn.at(path + "down_proj.weight"));
  if (spec.shared_gate)
    shared = shared * at::sigmoid(x.matmul(drawn.at("shared_expert_gate.weight").t()));
  return out + shared;
}

TEST(RoutedExperts, AreTheSumOfTheChosenAndTheSharedOne) {
  at::manual_seed(1);
  ExpertsSpec corrected = with_shared(false);
  corrected.correction = true;
  for (const ExpertsSpec& spec : {some_spec(), with_shared(true), with_shared(false), corrected}) {
    const DrawnExperts drawn(spec);
    const nn::Rows rows = nn::pack(std::vector<int64_t>{7, 5});
    const at::Tensor x = at::randn({12, kWidth}).requires_grad_();
    const at::Tensor want = by_torch(x, drawn, spec), got = drawn.forward(x, rows);
    EXPECT_TRUE(at::allclose(got, want, 1e-4, 1e-5)) << spec.shared_name << spec.shared_gate;
    const at::Tensor g = at::randn(want.sizes());
    const auto dx = torch::autograd::grad({got}, {x}, {g}),
               dwant = torch::autograd::grad({want}, {x}, {g});
    EXPECT_TRUE(at::allclose(dx[0], dwant[0], 1e-3, 1e-5)) << spec.shared_name;
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(drawn.forward(x, rows), got));
  }
}

TEST(RoutedExperts, ListTheirWeightsAsStacksAndEveryExpertsLinears) {
  const DrawnExperts drawn(with_shared(true));
  std::vector<std::string> names, paths;
  for (const NamedWeight& weight : drawn.parts.weights) names.push_back(weight.name);
  for (const NamedLinear& linear : drawn.parts.linears) paths.push_back(linear.path);
  const std::string mlp = "model.layers.1.mlp.";
  EXPECT_EQ(names, (std::vector<std::string>{
                       mlp + "gate.weight", mlp + "experts.gate_up_proj", mlp + "experts.down_proj",
                       mlp + "shared_expert.gate_proj.weight", mlp + "shared_expert.up_proj.weight",
                       mlp + "shared_expert.down_proj.weight", mlp + "shared_expert_gate.weight"}));
  ASSERT_EQ(paths.size(), 6u * 4 + 4);
  EXPECT_EQ(paths[4], mlp + "experts.1.gate_up_proj");
  EXPECT_EQ(paths[5], mlp + "experts.1.gate_proj");
  EXPECT_EQ(paths[7], mlp + "experts.1.down_proj");
  EXPECT_EQ(paths.back(), mlp + "shared_expert_gate");
  // A linear of an expert is a view of its stack.
  const nn::Linear& up = *drawn.parts.linears[6].linear;
  EXPECT_TRUE(at::equal(up.weight, drawn.at("experts.gate_up_proj")[1].narrow(0, 20, 20)));
}

TEST(RoutedExperts, ACorrectionIsNoWeight) {
  ExpertsSpec spec = some_spec();
  spec.correction = true;
  const DrawnExperts drawn(spec);
  EXPECT_EQ(drawn.parts.weights.size(), 3u);
  EXPECT_EQ(drawn.at("gate.e_score_correction_bias").sizes(), at::IntArrayRef{6});
}

TEST(RoutedExperts, TheBytesForBackwardAreThoseThatAreAllocated) {
  for (const ExpertsSpec& spec : {some_spec(), with_shared(true), with_shared(false)}) {
    const DrawnExperts drawn(spec);
    const nn::Rows rows = nn::pack(std::vector<int64_t>{900});
    const at::Tensor x = at::randn({900, kWidth}).requires_grad_();
    at::Tensor y;
    const kernels::AllocationMeter meter;
    y = drawn.forward(x, rows);
    const int64_t result = y.nbytes(), no_tensors = 900 * 2 * 16;  // it holds each row's owner
    const auto held = static_cast<double>(meter.now() - result + no_tensors);
    EXPECT_NEAR(static_cast<double>(drawn.block->saved_bytes(rows)) / held, 1.0, 0.01)
        << spec.shared_size << spec.shared_gate;
  }
}

TEST(RoutedExperts, ChoicesThatCannotBeAreRefused) {
  ExpertsSpec spec = some_spec();
  spec.route.top_k = 7;
  EXPECT_EQ(error_of([&] { DrawnExperts drawn(spec); }),
            "kernels: 7 experts a token, it must be from 1 to the number of experts, 6");
}

}  // namespace
}  // namespace twinkle::model
