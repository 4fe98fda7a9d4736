#include "twinkle/io/mxfp4/mxfp4.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/safetensors.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {
namespace {

float as_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// By the bits of the format, not by a table: a sign, two of an exponent with bias 1, one of a
// mantissa.
double by_the_formula(int bits, int scale) {
  const int exponent = bits >> 1 & 3, mantissa = bits & 1;
  const double size = exponent == 0 ? 0.5 * mantissa : std::ldexp(1 + 0.5 * mantissa, exponent - 1);
  return std::ldexp(bits & 8 ? -size : size, scale - 127);
}

TEST(Mxfp4, EveryValueOfEveryScaleIsThatOfTheFormatAndExactInBf16) {
  for (int scale = 0; scale < 255; ++scale) {
    for (int bits = 0; bits < 16; ++bits) {
      const double want = by_the_formula(bits, scale);
      const float got =
          as_float(mxfp4_value(static_cast<uint8_t>(bits), static_cast<uint8_t>(scale)));
      EXPECT_EQ(std::signbit(got), bits >= 8) << bits << " " << scale;
      if (std::abs(want) < std::ldexp(1.0, 128)) {
        EXPECT_EQ(got, want) << bits << " " << scale;
      } else {
        EXPECT_TRUE(std::isinf(got)) << bits << " " << scale;
      }
    }
  }
  for (uint8_t bits = 0; bits < 16; ++bits)
    EXPECT_TRUE(std::isnan(as_float(mxfp4_value(bits, 255))));
}

// Two matrices of 64 inputs and 3 outputs, whose bytes and scales take all values.
struct Pair {
  ScratchDir dir;
  std::vector<int64_t> blocks_shape{2, 3, 2, 16}, scales_shape{2, 3, 2};
  std::vector<uint8_t> blocks, scales;
  Dtype dtype = Dtype::kU8;  // type of the scales
  std::string config =
      R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}})";
  std::string blocks_name = "w_blocks", scales_name = "w_scales";

  Pair() {
    for (int i = 0; i < 2 * 3 * 2 * 16; ++i) blocks.push_back(static_cast<uint8_t>(7 + 37 * i));
    for (int i = 0; i < 2 * 3 * 2; ++i) scales.push_back(static_cast<uint8_t>(120 + i));
  }
  Checkpoint open(const std::vector<std::string>& more = {}) {
    std::vector<TensorView> views{{.name = blocks_name,
                                   .dtype = Dtype::kU8,
                                   .shape = blocks_shape,
                                   .bytes = std::as_bytes(std::span(blocks))},
                                  {.name = scales_name,
                                   .dtype = dtype,
                                   .shape = scales_shape,
                                   .bytes = std::as_bytes(std::span(scales))}};
    for (const std::string& name : more) {
      views.push_back({.name = name,
                       .dtype = Dtype::kU8,
                       .shape = {1},
                       .bytes = std::as_bytes(std::span(scales)).first(1)});
    }
    write_safetensors(dir / "model.safetensors", views);
    write_text(dir / "config.json", config);
    return Checkpoint::open(dir.path());
  }
  std::string error(const std::vector<std::string>& more = {}) {
    const std::string text = error_of([&] { open(more); });
    const size_t at = text.find(dir.path().string());
    return at == std::string::npos
               ? text
               : text.substr(0, at) + "DIR" + text.substr(at + dir.path().string().size());
  }
  // The element of matrix e at input i and output o.
  double at(int e, int i, int o) const {
    const int block = (e * 3 + o) * 2 + i / 32,
              byte = blocks[static_cast<size_t>(block * 16 + i % 32 / 2)];
    return by_the_formula(i % 2 ? byte >> 4 : byte & 15, scales[static_cast<size_t>(block)]);
  }
};

std::vector<uint16_t> read(const StoredTensor& w, int64_t begin, int64_t end) {
  std::vector<uint16_t> got(static_cast<size_t>(end - begin));
  w.read(std::as_writable_bytes(std::span(got)), 2 * begin);
  return got;
}

TEST(Mxfp4, APairIsOneTensorOfTurnedMatrices) {
  Pair pair;
  const Checkpoint checkpoint = pair.open({"another"});
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"another", "w"}));
  EXPECT_EQ(find(checkpoint.config(), "quantization_config"), nullptr);
  const StoredTensor& w = checkpoint.at("w");
  EXPECT_EQ(w.dtype, Dtype::kBF16);
  EXPECT_EQ(w.shape, (std::vector<int64_t>{2, 64, 3}));
  const std::vector<uint16_t> all = read(w, 0, 2 * 64 * 3);
  for (int n = 0; n < 2 * 64 * 3; ++n)
    EXPECT_EQ(as_float(all[static_cast<size_t>(n)]), pair.at(n / 192, n / 3 % 64, n % 3)) << n;
}

TEST(Mxfp4, ItIsReadInPiecesInAnyOrder) {
  Pair pair;
  const Checkpoint checkpoint = pair.open();
  const StoredTensor& w = checkpoint.at("w");
  const std::vector<uint16_t> all = read(w, 0, 2 * 64 * 3);
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 1}, {1, 100}, {100, 192}, {191, 193}, {383, 384}, {5, 384}, {0, 192}, {50, 51}}) {
    EXPECT_EQ(read(w, begin, end), std::vector<uint16_t>(all.begin() + begin, all.begin() + end))
        << begin << " " << end;
  }
}

TEST(Mxfp4, OfAnotherFamilyOrMethodNothingIsChanged) {
  for (const char* config :
       {R"({"model_type": "qwen3_moe", "quantization_config": {"quant_method": "mxfp4"}})",
        R"({"model_type": "gpt_oss", "quantization_config": {"quant_method": "quark"}})",
        R"({"model_type": "gpt_oss"})"}) {
    Pair pair;
    pair.config = config;
    const Checkpoint checkpoint = pair.open();
    EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"w_blocks", "w_scales"})) << config;
    EXPECT_EQ(checkpoint.config(), read_json(pair.dir / "config.json"));
  }
}

TEST(Mxfp4, NamesWhatIsWrong) {
  Pair lonely, other, named, twice, flat, turned, typed;
  lonely.scales_name = "x_scales";
  EXPECT_EQ(lonely.error(),
            "io: DIR: tensor 'w_blocks' is there, but not 'w_scales': fetch the checkpoint again");
  other.scales_name = "v_scales";
  EXPECT_EQ(other.error(),
            "io: DIR: tensor 'v_scales' is there, but not 'v_blocks': fetch the checkpoint again");
  named.blocks_name = "w";
  EXPECT_EQ(named.error(),
            "io: DIR: tensor 'w_scales' is there, but not 'w_blocks': fetch the checkpoint again");
  EXPECT_EQ(twice.error({"w"}),
            "io: DIR: tensor 'w' is there twice, and as 'w_blocks': fetch the checkpoint again");
  flat.blocks_shape = {2, 3, 32};
  EXPECT_EQ(flat.error(),
            "io: DIR: tensor 'w_blocks' is U8 of shape [2, 3, 32], it must be U8 [experts, "
            "outputs, inputs / 32, 16]: fetch it again");
  turned.scales_shape = {2, 2, 3};
  EXPECT_EQ(turned.error(),
            "io: DIR: tensor 'w_scales' is U8 of shape [2, 2, 3], it must be U8 of shape [2, 3, 2] "
            "for 'w_blocks' of shape [2, 3, 2, 16]: they are not of one model, fetch both again");
  typed.dtype = Dtype::kI8;
  EXPECT_EQ(typed.error(),
            "io: DIR: tensor 'w_scales' is I8 of shape [2, 3, 2], it must be U8 of shape [2, 3, 2] "
            "for 'w_blocks' of shape [2, 3, 2, 16]: they are not of one model, fetch both again");
}

}  // namespace
}  // namespace twinkle
