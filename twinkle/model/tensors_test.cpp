#include "twinkle/model/tensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "twinkle/io/safetensors.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::model {
namespace {

StoredTensor::Reader of(const at::Tensor& tensor) {
  return [tensor](int64_t offset, std::span<std::byte> out) {
    const auto* bytes = static_cast<const std::byte*>(tensor.const_data_ptr());
    std::copy_n(bytes + offset, out.size(), out.begin());
  };
}

TEST(Tensors, AViewComesBackAsTheSameTensorOfEveryFloatType) {
  const ScratchDir dir;
  const at::Tensor value = at::arange(6, at::kFloat).reshape({2, 3}) - 2.5;  // exact in bfloat16
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor stored = value.to(type);
    write_safetensors(dir / "model.safetensors", std::vector{view_of("w", stored)});
    const Checkpoint checkpoint = Checkpoint::open(dir / "model.safetensors");
    for (const auto wanted : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const at::Tensor read = tensor_of(checkpoint, "w", {2, 3}, wanted);
      EXPECT_EQ(read.scalar_type(), wanted);
      EXPECT_TRUE(at::equal(read, value.to(wanted)));
    }
    EXPECT_TRUE(at::equal(to_float32(checkpoint.at("w")), value));
  }
}

TEST(Tensors, HalfPrecisionIsRead) {
  const at::Tensor half = at::tensor({0.5f, -1.25f, 3.0f}).to(at::kHalf);
  const StoredTensor stored{.name = "w", .dtype = Dtype::kF16, .shape = {3}, .reader = of(half)};
  EXPECT_TRUE(at::equal(to_float32(stored), half.to(at::kFloat)));
}

TEST(Tensors, BytesAtAnOddAddressAreRead) {
  const ScratchDir dir;
  const at::Tensor value = at::randn({5});
  std::string header = R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                       R"("w":{"dtype":"F32","shape":[5],"data_offsets":[1,21]}})";
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), 8);
  file += header + "x";
  file.append(static_cast<const char*>(value.const_data_ptr()), value.nbytes());
  write_text(dir / "x.safetensors", file);
  EXPECT_TRUE(at::equal(to_float32(Checkpoint::open(dir / "x.safetensors").at("w")), value));
}

TEST(Tensors, WhatIsMissingOrOfAnotherShapeOrTypeIsNamed) {
  const ScratchDir dir;
  const at::Tensor w = at::zeros({2, 3}), ids = at::zeros({2}, at::kLong);
  write_safetensors(dir / "model.safetensors", std::vector{view_of("w", w), view_of("ids", ids)});
  const auto file = dir / "model.safetensors";
  const Checkpoint checkpoint = Checkpoint::open(file);
  EXPECT_EQ(error_of([&] { tensor_of(checkpoint, "b", {2}, at::kFloat); }),
            "model: " + file.string() + " has no tensor b, which config.json asks for");
  EXPECT_EQ(error_of([&] { tensor_of(checkpoint, "w", {3, 2}, at::kFloat); }),
            "model: tensor w has shape [2, 3], config.json asks for [3, 2]");
  EXPECT_EQ(error_of([&] { tensor_of(checkpoint, "ids", {2}, at::kFloat); }),
            "model: tensor ids is I64; weights are F32, F16, BF16 or F64");
  EXPECT_EQ(error_of([&] { view_of("w", w.to(at::kHalf)); }), "model: cannot write w of type Half");
}

TEST(Tensors, OneNumberThatIsNotFiniteIsFoundWhereverItIs) {
  const ScratchDir dir;
  const auto file = dir / "model.safetensors";
  for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      for (const int64_t place : {0, 100, 1000}) {
        const at::Tensor w = at::full({1001}, -3e38).to(type);  // near the end of the range
        w[place] = bad;
        write_safetensors(file, std::vector{view_of("w", w)});
        EXPECT_EQ(error_of([&] { tensor_of(Checkpoint::open(file), "w", {1001}, at::kFloat); }),
                  "model: tensor w of " + file.string() +
                      " holds NaN or infinity; fetch the checkpoint again");
        w[place] = 0;
        write_safetensors(file, std::vector{view_of("w", w)});
        EXPECT_TRUE(tensor_of(Checkpoint::open(file), "w", {1001}, type).equal(w));
      }
    }
  }
}

}  // namespace
}  // namespace twinkle::model
