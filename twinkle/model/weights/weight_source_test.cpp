#include "twinkle/model/weights/weight_source.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "twinkle/io/safetensors.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::model {
namespace {

constexpr const char* kRemedy = "; they are not of one model: fetch both again";

// A checkpoint of one tensor "w".
class OfOne {
 public:
  explicit OfOne(const at::Tensor& w) {
    write_safetensors(dir_ / "model.safetensors", std::vector{view_of("w", w)});
  }
  WeightSource source(at::ScalarType dtype, std::vector<std::string> zeros = {}) const {
    return {Checkpoint::open(dir_ / "model.safetensors"), dtype, std::move(zeros)};
  }

 private:
  ScratchDir dir_;
};

TEST(WeightSource, EveryFloatTypeIsReadInTheTypeThatIsAskedFor) {
  const at::Tensor value = at::arange(6, at::kFloat).reshape({2, 3}) - 2.5;  // exact in bfloat16
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const OfOne stored(value.to(type));
    for (const auto wanted : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const at::Tensor read = stored.source(wanted).read("w", {2, 3});
      EXPECT_EQ(read.scalar_type(), wanted);
      EXPECT_TRUE(at::equal(read, value.to(wanted)));
    }
  }
}

TEST(WeightSource, WhatTheLayoutSaysStaysFloat32InABfloat16Model) {
  const ScratchDir dir;
  const at::Tensor value = at::rand({5}) + 1;
  write_safetensors(dir / "model.safetensors",
                    std::vector{view_of("a.log", value), view_of("analog", value)});
  const Layout layout{.in_float32 = {"log"}};
  const auto read = [&](at::ScalarType dtype, const char* name) {
    const WeightSource source(Checkpoint::open(dir / "model.safetensors"), dtype, {}, layout);
    EXPECT_TRUE(at::equal(source.read_run(name, {5}, 1, 3), source.read(name, {5}).slice(0, 1, 3)));
    return source.read(name, {5});
  };
  EXPECT_TRUE(at::equal(read(at::kBFloat16, "a.log"), value));
  EXPECT_TRUE(at::equal(read(at::kBFloat16, "analog"), value.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(read(at::kDouble, "a.log"), value.to(at::kDouble)));
}

TEST(WeightSource, ASliceOfAnyDimIsThatOfTheWhole) {
  const at::Tensor whole = at::randn({4, 6, 5});
  const OfOne stored(whole);
  WeightMemory memory;
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const WeightSource source = stored.source(type);
    for (int64_t dim = 0; dim < 3; ++dim) {
      const int64_t size = whole.size(dim);
      for (int64_t begin = 0; begin <= size; ++begin) {
        for (int64_t end = begin; end <= size; ++end) {
          const at::Tensor want = whole.slice(dim, begin, end).to(type);
          EXPECT_TRUE(at::equal(source.read("w", {4, 6, 5}, {dim, begin, end}), want))
              << dim << ": " << begin << " to " << end;
          EXPECT_TRUE(at::equal(source.read("w", {4, 6, 5}, {dim, begin, end}, &memory), want));
        }
        EXPECT_TRUE(at::equal(source.read("w", {4, 6, 5}, {.dim = dim, .begin = begin}),
                              whole.slice(dim, begin).to(type)));
      }
    }
  }
}

// Files of many ranks' slices would otherwise be read as often as there are ranks.
TEST(WeightSource, WhatIsOutsideASliceIsNotRead) {
  at::Tensor w = at::zeros({4, 3});
  w[3][2] = NAN;
  const OfOne stored(w);
  const WeightSource source = stored.source(at::kFloat);
  EXPECT_NO_THROW(source.read("w", {4, 3}, {0, 0, 3}));
  EXPECT_NO_THROW(source.read("w", {4, 3}, {1, 0, 2}));
  EXPECT_THROW(source.read("w", {4, 3}, {0, 3, 4}), Error);
  EXPECT_THROW(source.read("w", {4, 3}, {1, 2, 3}), Error);
}

TEST(WeightSource, ASliceThatIsNotInsideIsRefused) {
  const WeightSource source = OfOne(at::zeros({4, 3})).source(at::kFloat);
  EXPECT_EQ(error_of([&] { source.read("w", {4, 3}, {2, 0, 1}); }),
            "model: a slice of dim 2 of a tensor of shape [4, 3]");
  EXPECT_EQ(error_of([&] { source.read("w", {4, 3}, {1, 2, 4}); }),
            "model: a slice from 2 to 4 of a dim of 3");
}

TEST(WeightSource, WeightsThatAreZeroWhereThereIsNoneAreTakenWhereThereIsOne) {
  const at::Tensor w = at::ones({2, 3});
  const OfOne stored(w);
  const WeightSource source = stored.source(at::kFloat, {"w", "bias"});
  EXPECT_TRUE(at::equal(source.read("w", {2, 3}), w));
  EXPECT_TRUE(at::equal(source.read("bias", {4}), at::zeros({4})));
  EXPECT_TRUE(at::equal(source.read("bias", {4}, {0, 1, 3}), at::zeros({2})));
  source.check("bias", {4});
  EXPECT_THROW(source.check("other", {4}), Error);
}

// Experts in files of their own, as one weight [3, 4, 5] of two parts a matrix.
TEST(WeightSource, AStackIsReadFromItsPartsWholeAndInSlicesAndRuns) {
  const ScratchDir dir;
  const auto file = dir / "model.safetensors";
  const at::Tensor whole = at::randn({3, 4, 5});
  std::vector<at::Tensor> matrices;
  std::vector<TensorView> views;
  for (int64_t e = 0; e < 3; ++e) {
    const std::string before = "model.layers.7.mlp.experts." + std::to_string(e);
    for (const int64_t half : {0, 1}) {
      matrices.push_back(whole[e].slice(0, 2 * half, 2 * half + 2).contiguous());
      views.push_back(
          view_of(before + (half == 0 ? ".gate_proj.weight" : ".up_proj.weight"), matrices.back()));
    }
  }
  write_safetensors(file, views);
  const Layout layout{
      .stacks = {{"mlp.experts.gate_up_proj",
                  {"mlp.experts.*.gate_proj.weight", "mlp.experts.*.up_proj.weight"}}}};
  const WeightSource source(Checkpoint::open(file), at::kFloat, {}, layout);
  const std::string name = "model.layers.7.mlp.experts.gate_up_proj";
  EXPECT_TRUE(at::equal(source.read(name, {3, 4, 5}), whole));
  for (int64_t dim = 0; dim < 3; ++dim)
    EXPECT_TRUE(at::equal(source.read(name, {3, 4, 5}, {dim, 1, 3}), whole.slice(dim, 1, 3)));
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 60}, {7, 33}, {10, 20}, {59, 60}})
    EXPECT_TRUE(at::equal(source.read_run(name, {3, 4, 5}, begin, end),
                          whole.flatten().slice(0, begin, end)));
  EXPECT_EQ(source.tensors_of(name, {3, 4, 5}).size(), 6u);
  EXPECT_EQ(error_of([&] { source.check(name, {4, 4, 5}); }),
            "model: " + file.string() +
                " has no tensor model.layers.7.mlp.experts.3.gate_proj.weight"
                ", which config.json asks for" +
                kRemedy);
  EXPECT_EQ(error_of([&] { source.check(name, {3, 6, 5}); }),
            "model: tensor model.layers.7.mlp.experts.0.gate_proj.weight of " + file.string() +
                " has shape [2, 5], config.json asks for [3, 5]" + kRemedy);
  const at::Tensor half = matrices[5].to(at::kBFloat16);
  views.back() = view_of(views.back().name, half);
  write_safetensors(file, views);
  EXPECT_EQ(
      error_of([&] {
        WeightSource(Checkpoint::open(file), at::kFloat, {}, layout).check(name, {3, 4, 5});
      }),
      "model: tensor model.layers.7.mlp.experts.2.up_proj.weight of " + file.string() +
          " is BF16, and model.layers.7.mlp.experts.0.gate_proj.weight is F32; the parts of one "
          "weight must have one type: save the checkpoint again in one");
}

TEST(WeightSource, WhatIsMissingOrOfAnotherShapeOrTypeIsNamed) {
  const ScratchDir dir;
  const at::Tensor w = at::zeros({2, 3}), ids = at::zeros({2}, at::kLong);
  write_safetensors(dir / "model.safetensors", std::vector{view_of("w", w), view_of("ids", ids)});
  const auto file = dir / "model.safetensors";
  const WeightSource source(Checkpoint::open(file), at::kFloat);
  EXPECT_EQ(error_of([&] { source.read("b", {2}); }),
            "model: " + file.string() + " has no tensor b, which config.json asks for" + kRemedy);
  const std::string misshapen = "model: tensor w of " + file.string() +
                                " has shape [2, 3], config.json asks for [3, 2]" + kRemedy;
  EXPECT_EQ(error_of([&] { source.read("w", {3, 2}); }), misshapen);
  EXPECT_EQ(error_of([&] { source.read("ids", {2}); }),
            "model: tensor ids of " + file.string() +
                " is I64; weights are F32, F16, BF16 or F64: save the checkpoint again in one of "
                "these");
  EXPECT_EQ(error_of([&] { source.check("w", {3, 2}); }), misshapen);
}

TEST(WeightSource, OneNumberThatIsNotFiniteIsFoundWhereverItIs) {
  const ScratchDir dir;
  const auto file = dir / "model.safetensors";
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      for (const int64_t place : {0, 100, 1000}) {
        const at::Tensor w = at::full({1001}, -3e38).to(type);  // near the end of the range
        w[place] = bad;
        write_safetensors(file, std::vector{view_of("w", w)});
        EXPECT_EQ(
            error_of([&] { WeightSource(Checkpoint::open(file), at::kFloat).read("w", {1001}); }),
            "model: tensor w of " + file.string() +
                " holds NaN or infinity; fetch the checkpoint again");
        w[place] = 0;
        write_safetensors(file, std::vector{view_of("w", w)});
        EXPECT_TRUE(WeightSource(Checkpoint::open(file), type).read("w", {1001}).equal(w));
      }
    }
  }
}

}  // namespace
}  // namespace twinkle::model
