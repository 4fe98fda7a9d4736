#include "twinkle/io/gguf/gguf_writer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "twinkle/io/gguf/gguf_for_test.h"

namespace twinkle {
namespace {

StoredTensor f32_tensor(const std::string& name, const std::vector<int64_t>& shape,
                        std::vector<float> values) {
  return {.name = name,
          .dtype = Dtype::kF32,
          .shape = shape,
          .reader = [values = std::move(values)](int64_t offset, std::span<std::byte> out) {
            std::memcpy(out.data(), std::as_bytes(std::span(values)).data() + offset, out.size());
          }};
}

std::vector<float> drawn_values(size_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

std::vector<float> read_back(const GgufFile& file, const char* name) {
  const GgufTensor* tensor = file.find(name);
  std::vector<float> out(static_cast<size_t>(num_elements(tensor->shape).value()));
  read_values(*file.file(), *tensor, 0, out);
  return out;
}

TEST(GgufWriter, ItsFilesAreReadBack) {
  const ScratchDir dir;
  const std::vector<float> values = drawn_values(3 * 64);
  const GgufMetadata metadata{{"u", uint32_t{7}},
                              {"f", 1e-5F},
                              {"yes", true},
                              {"text", std::string("é")},
                              {"ids", std::vector<int32_t>{1, -2}},
                              {"words", std::vector<std::string>{"a", "Ġb"}}};
  const std::vector<GgufOutput> tensors{{f32_tensor("a", {3}, {1, 2, 3}), GgufType::kF32},
                                        {f32_tensor("b", {3, 64}, values), GgufType::kF16},
                                        {f32_tensor("c", {3, 64}, values), GgufType::kQ8_0}};
  write_gguf(dir / "x.gguf", metadata, tensors);
  const GgufFile file(dir / "x.gguf");
  const JsonObject expected{{"u", 7},      {"f", 1e-5},      {"yes", true},
                            {"text", "é"}, {"ids", {1, -2}}, {"words", {"a", "Ġb"}}};
  EXPECT_EQ(file.metadata(), expected) << pretty(file.metadata());
  EXPECT_EQ(read_back(file, "a"), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(file.find("b")->shape, (std::vector<int64_t>{3, 64}));
  const std::vector<float> half = read_back(file, "b"), eighth = read_back(file, "c");
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(half[i], values[i], 0x1p-11 * std::abs(values[i]) + 0x1p-25);
    EXPECT_NEAR(eighth[i], values[i], 4.0 / 127 / 2);
  }
}

TEST(GgufWriter, F16IsTheNearestWithTiesToEven) {
  const auto f16 = [](float value) {
    uint16_t half = 0;
    const bool fits =
        quantize(GgufType::kF16, {&value, 1}, std::as_writable_bytes(std::span(&half, 1)));
    return fits ? half : uint16_t{0xFFFF};
  };
  EXPECT_EQ(f16(1.0F), 0x3C00);
  EXPECT_EQ(f16(-2.0F), 0xC000);
  EXPECT_EQ(f16(1 + 0x1p-11F), 0x3C00) << "a tie, down to even";
  EXPECT_EQ(f16(1 + 3 * 0x1p-11F), 0x3C02) << "a tie, up to even";
  EXPECT_EQ(f16(1 + 0x1p-11F + 0x1p-20F), 0x3C01);
  EXPECT_EQ(f16(0x1p-14F), 0x0400) << "the least normal one";
  EXPECT_EQ(f16(0x1p-24F), 0x0001);
  EXPECT_EQ(f16(0x1p-25F), 0x0000) << "a tie, down to even";
  EXPECT_EQ(f16(3 * 0x1p-25F), 0x0002);
  EXPECT_EQ(f16(-0x1p-24F), 0x8001);
  EXPECT_EQ(f16(65504), 0x7BFF);
  EXPECT_EQ(f16(65519), 0x7BFF);
  for (const float beyond : {65520.0F, 1e9F, std::numeric_limits<float>::infinity(), NAN})
    EXPECT_EQ(f16(beyond), 0xFFFF) << beyond;
}

TEST(GgufWriter, AScaleOfQ8_0IsA127thOfTheLargest) {
  std::vector<float> values(32, 0.0F);
  values[0] = -2;
  values[1] = 1.0F / 127;  // half of a step, away from zero
  std::string block(34, '\0');
  ASSERT_TRUE(quantize(GgufType::kQ8_0, values,
                       std::as_writable_bytes(std::span(block.data(), block.size()))));
  EXPECT_EQ(block[2], -127);
  EXPECT_EQ(block[3], 1);
  EXPECT_EQ(block[4], 0);
  EXPECT_NEAR(values_of(GgufType::kQ8_0, block, 32)[0], -2, 1e-3);
  ASSERT_TRUE(quantize(GgufType::kQ8_0, std::vector<float>(32, 0.0F),
                       std::as_writable_bytes(std::span(block.data(), block.size()))));
  EXPECT_EQ(block, std::string(34, '\0')) << "no division by 0";
}

TEST(GgufWriter, NamesWhatItCannotWrite) {
  const ScratchDir dir;
  const auto error = [&](const GgufMetadata& metadata, const std::vector<GgufOutput>& tensors) {
    return invalid_of([&] { write_gguf(dir / "x.gguf", metadata, tensors); });
  };
  EXPECT_EQ(error({}, {{f32_tensor("w", {1}, {65520}), GgufType::kF16}}),
            "io: tensor 'w' holds a number that is not finite, or beyond 65504, F16's largest");
  EXPECT_EQ(error({}, {{f32_tensor("w", {2, 33}, {}), GgufType::kQ8_0}}),
            "io: tensor 'w': rows of shape [2, 33] are no multiple of 32 values, as Q8_0 has them; "
            "write F16");
  EXPECT_EQ(error({{"k", true}, {"k", true}}, {}), "io: metadata 'k' is given twice");
  const GgufOutput twice{f32_tensor("w", {1}, {1}), GgufType::kF32};
  EXPECT_EQ(error({}, {twice, twice}), "io: tensor 'w' is given twice");
  EXPECT_TRUE(std::filesystem::is_empty(dir.path())) << "nothing is left";
}

TEST(GgufWriter, NamesOfTensorsAreTheReadersInverse) {
  for (const char* name :
       {"token_embd.weight", "output.weight", "output_norm.weight", "blk.12.attn_q.bias",
        "blk.0.attn_k_norm.weight", "blk.3.ffn_down.weight"})
    EXPECT_EQ(gguf_name(hugging_face_name(name)), name);
  for (const char* none : {"model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.0",
                           "model.layers.0.mlp.gate.weight", "score.weight", ""})
    EXPECT_EQ(gguf_name(none), "") << none;
}

TEST(GgufWriter, LlamasRowsComeBackInOrder) {
  const ScratchDir dir;
  const std::vector<float> rows{0, 1, 2, 3, 4, 5, 6, 7};
  StoredTensor q = interleaved(f32_tensor("blk.0.attn_q.weight", {8, 1}, rows), 2);
  GgufMetadata metadata{{"general.architecture", std::string("llama")},
                        {"llama.embedding_length", uint32_t{8}},
                        {"llama.block_count", uint32_t{1}},
                        {"llama.feed_forward_length", uint32_t{3}},
                        {"llama.context_length", uint32_t{64}},
                        {"llama.attention.head_count", uint32_t{2}},
                        {"llama.attention.layer_norm_rms_epsilon", 1e-5F}};
  write_gguf(dir / "x.gguf", metadata,
             std::vector<GgufOutput>{
                 {std::move(q), GgufType::kF32},
                 {f32_tensor("token_embd.weight", {2, 8}, drawn_values(16)), GgufType::kF32}});
  const GgufFile file(dir / "x.gguf");
  EXPECT_EQ(read_back(file, "blk.0.attn_q.weight"), (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
  const TensorView view =
      Checkpoint::open(dir / "x.gguf").at("model.layers.0.self_attn.q_proj.weight").load();
  EXPECT_EQ(std::memcmp(view.bytes.data(), rows.data(), view.bytes.size()), 0);
  EXPECT_EQ(invalid_of([] { interleaved(f32_tensor("q", {6, 1}, {}), 2); }),
            "io: tensor 'q' has 6 rows, they must be a multiple of twice 2 heads");
}

}  // namespace
}  // namespace twinkle
