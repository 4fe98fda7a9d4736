#include "twinkle/nn/attention/rope.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>

#include "twinkle/base/error.h"
#include "twinkle/kernels/finite_difference_for_test.h"

namespace twinkle::nn {
namespace {

// cos and sin of transformers 5.23's LlamaRotaryEmbedding, head_dim 64, at these positions and
// pairs.
constexpr std::array<int64_t, 4> kPositions{1, 7, 1000, 4000};
constexpr std::array<int64_t, 4> kPairs{3, 10, 20, 31};

struct Reference {
  const char* name;
  RopeSpec spec;
  std::array<float, 4> cos, sin;
};

const std::vector<Reference> kReferences{
    {"default",
     {},
     {0.912395835f, 0.923519492f, -0.999786079f, 0.861078918f},
     {0.40930894f, 0.383551538f, -0.0206838083f, 0.50847137f}},
    {"linear",
     {.kind = RopeKind::kLinear, .theta = 500000, .factor = 4},
     {0.997332513f, 0.999580085f, 0.997650564f, 0.99999547f},
     {0.0729919896f, 0.0289767142f, 0.0685083419f, 0.00301385345f}},
    {"yarn",
     {.kind = RopeKind::kYarn, .theta = 1000000, .factor = 4, .original_max_position = 32768},
     {1.09620297f, 1.13367224f, 1.13750434f, 1.13862813f},
     {0.307922095f, 0.10613279f, 0.0506033562f, 0.00175340497f}},
    {"yarn with mscale, without truncation",
     {.kind = RopeKind::kYarn,
      .factor = 8,
      .original_max_position = 1024,
      .beta_fast = 16,
      .beta_slow = 2,
      .truncate = false,
      .mscale = 1.0,
      .mscale_all_dim = 0.5},
     {0.998325288f, 1.04487538f, 1.00980449f, 1.0917486f},
     {0.447857648f, 0.324754149f, 0.421336949f, 0.0729015842f}},
    {"llama3",
     {.kind = RopeKind::kLlama3, .theta = 500000, .factor = 8, .original_max_position = 8192},
     {0.957604468f, 0.993288457f, 0.999412477f, 0.999998868f},
     {0.288086325f, 0.115663625f, 0.0342743099f, 0.00150692847f}},
};

TEST(RopeTable, equals_that_of_transformers) {
  for (const auto& [name, spec, cos, sin] : kReferences) {
    const RopeTable table = make_rope_table(spec, 64, 4001);
    EXPECT_EQ(table.num_rows(), 4001);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_FLOAT_EQ(table.cos[kPositions[i]][kPairs[i]].item<float>(), cos[i]) << name << i;
      EXPECT_FLOAT_EQ(table.sin[kPositions[i]][kPairs[i]].item<float>(), sin[i]) << name << i;
    }
  }
}

TEST(RopeTable, a_partial_rotary_dim_sets_the_wavelengths) {
  const RopeTable part = make_rope_table({.rotary_dim = 16}, 64, 10);
  const RopeTable whole = make_rope_table({}, 16, 10);
  EXPECT_EQ(part.rotary_dim(), 16);
  EXPECT_TRUE(at::equal(part.cos, whole.cos) && at::equal(part.sin, whole.sin));
}

TEST(RopeTable, an_attention_factor_multiplies_both) {
  RopeSpec spec{.kind = RopeKind::kYarn, .factor = 4, .original_max_position = 512};
  spec.attention_factor = 2;
  const RopeTable table = make_rope_table(spec, 32, 5);
  EXPECT_TRUE(at::allclose(table.cos.square() + table.sin.square(), at::full({5, 16}, 4.0)));
}

RopeSpec longrope() {
  RopeSpec spec{.kind = RopeKind::kLongRope, .factor = 4, .original_max_position = 10};
  spec.short_factor = {1, 1.5, 2};
  spec.long_factor = {1, 4, 30};
  return spec;
}

TEST(RopeTable, of_longrope_has_the_rows_of_long_sequences_behind_those_of_short_ones) {
  const RopeSpec spec = longrope();
  EXPECT_EQ(spec.first_row(10), 0);
  EXPECT_EQ(spec.first_row(11), 10);
  EXPECT_EQ(spec.num_rows(10), 10);
  EXPECT_EQ(spec.num_rows(25), 35);
  EXPECT_EQ(RopeSpec().first_row(25), 0);
  const RopeTable table = make_rope_table(spec, 6, 35);
  const double scale = std::sqrt(1 + std::log(4.0) / std::log(10.0));
  for (const int64_t position : {3, 9, 24}) {
    for (int64_t pair = 0; pair < 3; ++pair) {
      const double wave = std::pow(10000.0, static_cast<double>(pair) / 3);
      const auto expect_row = [&](int64_t row, double factor) {
        const double angle = static_cast<double>(position) / (factor * wave);
        EXPECT_NEAR(table.cos[row][pair].item<double>(), std::cos(angle) * scale, 1e-6);
        EXPECT_NEAR(table.sin[row][pair].item<double>(), std::sin(angle) * scale, 1e-6);
      };
      const auto at = static_cast<size_t>(pair);
      if (position < 10) expect_row(position, spec.short_factor[at]);
      expect_row(10 + position, spec.long_factor[at]);
    }
  }
  EXPECT_TRUE(at::equal(make_rope_table(spec, 6, 7).cos, table.cos.slice(0, 0, 7)));
}

TEST(ApplyRope, gradients_equal_finite_differences) {
  const auto positions = at::tensor({0, 19, 5}, at::kInt);
  for (const bool interleaved : {false, true}) {
    const auto q = kernels::leaf({3, 2, 6}), k = kernels::leaf({3, 1, 6});  // their .grad adds up
    const RopeTable table = make_rope_table({.rotary_dim = 4, .interleaved = interleaved}, 6, 20);
    kernels::expect_gradients([&] { return apply_rope(q, k, table, positions).first; }, {q});
    kernels::expect_gradients([&] { return apply_rope(q, k, table, positions).second; }, {k});
  }
}

TEST(ApplyRope, scores_depend_on_the_distance_alone) {
  const RopeTable table = make_rope_table({}, 32, 100);
  const auto q = at::randn({1, 1, 32}, at::kDouble), k = at::randn({1, 1, 32}, at::kDouble);
  const auto score = [&](int64_t i, int64_t j) {
    const auto a = apply_rope(q, k, table, at::tensor({i})).first;
    return (a * apply_rope(q, k, table, at::tensor({j})).second).sum().item<double>();
  };
  EXPECT_NEAR(score(9, 4), score(90, 85), 1e-4);
}

void expect_refused(const RopeSpec& spec, int64_t positions, const std::string& text) {
  try {
    make_rope_table(spec, 64, positions);
    ADD_FAILURE() << "no error, expected: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST(RopeTable, mistakes_are_named) {
  const auto yarn = RopeKind::kYarn, llama3 = RopeKind::kLlama3;
  expect_refused({.rotary_dim = 65}, 9, "nn: rope rotary_dim is 65");
  expect_refused({.rotary_dim = 66}, 9, "nn: rope rotary_dim is 66");
  expect_refused({}, 0, "nn: rope num_rows is 0");
  expect_refused({.theta = 0}, 9, "nn: rope theta is 0");
  expect_refused({.theta = INFINITY}, 9, "nn: rope theta is inf");
  expect_refused({.kind = RopeKind::kLinear, .factor = 0}, 9, "nn: rope factor is 0");
  expect_refused({.kind = RopeKind::kLinear, .factor = INFINITY}, 9, "nn: rope factor is inf");
  expect_refused({.kind = yarn}, 9, "nn: rope original_max_position is 0");
  expect_refused({.kind = llama3, .original_max_position = 9, .high_freq_factor = 1}, 9,
                 "nn: rope low_freq_factor is 1");
  expect_refused({.kind = yarn, .original_max_position = 9, .beta_slow = 0}, 9,
                 "nn: rope beta_slow is 0");
  RopeSpec factors = longrope();
  expect_refused(factors, 9, "nn: rope has 3 factors for 32 pairs of dims");
  factors.rotary_dim = 6;
  factors.short_factor[1] = 0;
  expect_refused(factors, 9, "nn: a rope factor of longrope is 0");
  factors.original_max_position = 1;
  expect_refused(factors, 9, "nn: rope original_max_position is 1");
  expect_refused({.kind = static_cast<RopeKind>(9), .original_max_position = 9}, 9,
                 "nn: rope kind 9 is unknown");
}

}  // namespace
}  // namespace twinkle::nn
