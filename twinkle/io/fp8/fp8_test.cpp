#include "twinkle/io/fp8/fp8.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/safetensors.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {
namespace {

TEST(Fp8, ItsValuesAreThoseOfTheFormat) {
  EXPECT_EQ(e4m3_value(0x00), 0);
  EXPECT_TRUE(std::signbit(e4m3_value(0x80)));
  EXPECT_EQ(e4m3_value(0x01), std::ldexp(1.0F, -9));  // the smallest
  EXPECT_EQ(e4m3_value(0x07), std::ldexp(7.0F, -9));  // the largest without a leading one
  EXPECT_EQ(e4m3_value(0x08), std::ldexp(1.0F, -6));
  EXPECT_EQ(e4m3_value(0x38), 1);
  EXPECT_EQ(e4m3_value(0xBC), -1.5F);
  EXPECT_EQ(e4m3_value(0x7E), 448);
  EXPECT_TRUE(std::isnan(e4m3_value(0x7F)) && std::isnan(e4m3_value(0xFF)));
}

// 3 x 5 ones, whose blocks of 2 x 2 have the factors 1, 2, 3 above 4, 5, 6.
struct Ones {
  ScratchDir dir;
  std::vector<uint8_t> ones = std::vector<uint8_t>(15, 0x38);
  std::vector<float> factors{1, 2, 3, 4, 5, 6};
  std::vector<int64_t> factors_shape{2, 3};
  Dtype factors_dtype = Dtype::kF32;  // or BF16
  std::string config =
      R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [2, 2]}})";
  std::string factors_name = "w_scale_inv";

  Checkpoint open() {
    std::vector<uint16_t> upper;
    for (const float factor : factors)
      upper.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(factor) >> 16));
    const std::vector<TensorView> views{
        {.name = "w",
         .dtype = Dtype::kF8E4M3,
         .shape = {3, 5},
         .bytes = std::as_bytes(std::span(ones))},
        {.name = factors_name,
         .dtype = factors_dtype,
         .shape = factors_shape,
         .bytes = factors_dtype == Dtype::kF32 ? std::as_bytes(std::span(factors))
                                               : std::as_bytes(std::span(upper))}};
    write_safetensors(dir / "model.safetensors", views);
    write_text(dir / "config.json", config);
    return Checkpoint::open(dir.path());
  }
  std::string error() {
    const std::string text = error_of([&] { open(); });
    const size_t at = text.find(dir.path().string());
    return at == std::string::npos
               ? text
               : text.substr(0, at) + "DIR" + text.substr(at + dir.path().string().size());
  }
};

TEST(Fp8, BlocksAtTheEdgesAreCut) {
  Ones ones;
  const Checkpoint checkpoint = ones.open();
  EXPECT_EQ(checkpoint.names(), std::vector<std::string>{"w"});
  const StoredTensor& w = checkpoint.at("w");
  EXPECT_EQ(w.dtype, Dtype::kF32);
  EXPECT_EQ(w.shape, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(find(checkpoint.config(), "quantization_config"), nullptr);
  const std::vector<float> want{1, 1, 2, 2, 3, 1, 1, 2, 2, 3, 4, 4, 5, 5, 6};
  for (int64_t begin = 0; begin < 15; ++begin) {
    for (int64_t end = begin + 1; end <= 15; ++end) {
      std::vector<float> got(static_cast<size_t>(end - begin));
      w.read(std::as_writable_bytes(std::span(got)), 4 * begin);
      EXPECT_EQ(got, std::vector<float>(want.begin() + begin, want.begin() + end))
          << begin << " " << end;
    }
  }
}

TEST(Fp8, FactorsMayBeBf16) {
  Ones ones;
  ones.factors_dtype = Dtype::kBF16;
  const Checkpoint checkpoint = ones.open();
  std::vector<float> got(15);
  checkpoint.at("w").read(std::as_writable_bytes(std::span(got)));
  EXPECT_EQ(got, (std::vector<float>{1, 1, 2, 2, 3, 1, 1, 2, 2, 3, 4, 4, 5, 5, 6}));
}

TEST(Fp8, WhatWasDequantisedIsKnownAndRoundsToBf16WhereItIsAskedFor) {
  Ones ones;
  ones.factors = {1, 2, 3, 4, 5, 1.00390625F};  // 1 + 2^-8: half way, to the even 1
  const Checkpoint checkpoint = ones.open();
  const StoredTensor& w = checkpoint.at("w");
  EXPECT_TRUE(w.dequantised);
  const StoredTensor narrow = in_bf16(w);
  EXPECT_EQ(narrow.dtype, Dtype::kBF16);
  EXPECT_EQ(narrow.num_bytes(), 30);
  std::vector<uint16_t> got(2);
  narrow.read(std::as_writable_bytes(std::span(got)), 2 * 13);
  EXPECT_EQ(got, (std::vector<uint16_t>{0x40A0, 0x3F80}));  // 5, 1
}

TEST(Fp8, NamesWhatIsWrong) {
  Ones ones;
  ones.config = "{}";
  EXPECT_EQ(
      ones.error(),
      "io: DIR holds F8_E4M3 tensors, but its config.json has no quantization_config; fetch the "
      "checkpoint again");
  ones.config = R"({"quantization_config": {"quant_method": "fbgemm_fp8"}})";
  EXPECT_EQ(ones.error(),
            "io: DIR: quantization_config's quant_method is 'fbgemm_fp8'; known: fp8; use an "
            "unquantised checkpoint, fp8 weights with weight_block_size or a GGUF file");
  ones.config = R"({"quantization_config": {"quant_method": "fp8"}})";
  EXPECT_EQ(
      ones.error(),
      "io: DIR: quantization_config's weight_block_size is missing, it must be two numbers of "
      "at least 1; use an unquantised checkpoint, fp8 weights with weight_block_size or a GGUF "
      "file");
  Ones turned, nameless;
  turned.factors_shape = {3, 2};
  EXPECT_EQ(turned.error(),
            "io: DIR: tensor 'w_scale_inv' is F32 of shape [3, 2], it must be F32 or BF16 of shape "
            "[2, 3] for 'w' of shape [3, 5] in blocks of 2 x 2; fetch the checkpoint again");
  nameless.factors_name = "w_scale";
  EXPECT_EQ(
      nameless.error(),
      "io: DIR: tensor 'w' is F8_E4M3, but there is no 'w_scale_inv'; fetch the checkpoint again");
}

}  // namespace
}  // namespace twinkle
