#include "twinkle/io/gguf/gguf.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "twinkle/base/file.h"
#include "twinkle/io/gguf/gguf_for_test.h"

namespace twinkle {
namespace {

TEST(Gguf, ReadsMetadataOfEveryKind) {
  const ScratchDir dir;
  Gguf gguf;
  gguf.add("u8", 0, raw<uint8_t>(200));
  gguf.add("i8", 1, raw<int8_t>(-3));
  gguf.add("u16", 2, raw<uint16_t>(65535));
  gguf.add("i16", 3, raw<int16_t>(-300));
  gguf.add("u32", 4, raw<uint32_t>(4294967295));
  gguf.add("i32", 5, raw<int32_t>(-70000));
  gguf.add("f32", 6, raw(1e-5F));
  gguf.add("bool", 7, raw<uint8_t>(1));
  gguf.add("array", 9, raw<uint32_t>(8) + raw<uint64_t>(2) + raw_text("a") + raw_text("é"));
  gguf.add("u64", 10, raw<uint64_t>(1) + std::string());
  gguf.add("i64", 11, raw<int64_t>(-1));
  gguf.add("f64", 12, raw(0.1));
  write_text(dir / "x.gguf", gguf.file());
  const GgufFile file(dir / "x.gguf");
  const JsonObject expected{{"u8", 200},   {"i8", -3},          {"u16", 65535},
                            {"i16", -300}, {"u32", 4294967295}, {"i32", -70000},
                            {"f32", 1e-5}, {"bool", true},      {"array", JsonArray{"a", "é"}},
                            {"u64", 1},    {"i64", -1},         {"f64", 0.1}};
  EXPECT_EQ(file.metadata(), expected) << pretty(file.metadata());
}

TEST(Gguf, BecomesACheckpointWithHuggingFaceNames) {
  const ScratchDir dir;
  Gguf gguf = tiny("qwen3");
  gguf.tensor("output_norm.weight", {8}, 0, floats(std::vector<float>(8, 0.1F)));
  gguf.tensor("output.weight", {2}, 1, raw(kOne) + raw(kHalf));
  std::string block = raw(kHalf) + std::string(16, '\0');
  gguf.tensor("blk.0.ffn_down.weight", {32, 1}, 2, block);
  for (const char* name :
       {"attn_norm.weight", "ffn_norm.weight", "attn_q.weight", "attn_q.bias", "attn_k.weight",
        "attn_v.weight", "attn_output.weight", "attn_q_norm.weight", "attn_k_norm.weight",
        "ffn_gate.weight", "ffn_up.weight"}) {
    gguf.tensor(std::string("blk.0.") + name, {1}, 30, raw<uint16_t>(0x3F80));
  }
  write_text(dir / "x.gguf", gguf.file());
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  const std::string layer = "model.layers.0.";
  EXPECT_EQ(checkpoint.names(),
            (std::vector<std::string>{
                "lm_head.weight", "model.embed_tokens.weight", layer + "input_layernorm.weight",
                layer + "mlp.down_proj.weight", layer + "mlp.gate_proj.weight",
                layer + "mlp.up_proj.weight", layer + "post_attention_layernorm.weight",
                layer + "self_attn.k_norm.weight", layer + "self_attn.k_proj.weight",
                layer + "self_attn.o_proj.weight", layer + "self_attn.q_norm.weight",
                layer + "self_attn.q_proj.bias", layer + "self_attn.q_proj.weight",
                layer + "self_attn.v_proj.weight", "model.norm.weight"}));
  EXPECT_EQ(checkpoint.at("lm_head.weight").dtype, Dtype::kF16);
  const TensorView norm = checkpoint.at("model.norm.weight").load();
  EXPECT_EQ(norm.dtype, Dtype::kF32);
  EXPECT_EQ(std::memcmp(norm.bytes.data(), raw(0.1F).data(), 4), 0);
  const TensorView down = checkpoint.at(layer + "mlp.down_proj.weight").load();
  EXPECT_EQ(down.dtype, Dtype::kBF16);
  EXPECT_EQ(down.shape, (std::vector<int64_t>{1, 32}));
  ASSERT_EQ(down.bytes.size(), 64U);
  EXPECT_EQ(std::memcmp(down.bytes.data(), raw<uint16_t>(0xC080).data(), 2), 0);  // -4
  std::array<std::byte, 6> part{};
  checkpoint.at(layer + "mlp.down_proj.weight").read(part, 2);
  EXPECT_TRUE(std::ranges::equal(part, down.bytes.subspan(2, 6)));
}

// Rows 0..7 of q, one value each; two heads of four rows.
std::vector<float> q_rows_of(const std::string& architecture) {
  const ScratchDir dir;
  Gguf gguf = tiny(architecture);
  gguf.tensor("blk.0.attn_q.weight", {1, 8}, 0, floats({0, 2, 1, 3, 4, 6, 5, 7}));
  write_text(dir / "x.gguf", gguf.file());
  const Checkpoint checkpoint = Checkpoint::open(dir / "x.gguf");
  const TensorView q = checkpoint.at("model.layers.0.self_attn.q_proj.weight").load();
  std::vector<float> rows(8);
  std::memcpy(rows.data(), q.bytes.data(), q.bytes.size());
  return rows;
}

TEST(Gguf, PutsTheRowsOfLlamasQueriesBackInOrderAndNoOthers) {
  EXPECT_EQ(q_rows_of("llama"), (std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(q_rows_of("qwen2"), (std::vector<float>{0, 2, 1, 3, 4, 6, 5, 7}));
}

TEST(Gguf, NamesWhatIsWrongWithTheFile) {
  EXPECT_EQ(error_of_file("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
            "io: F is a Git LFS pointer, not the file itself; fetch it with: git lfs pull");
  EXPECT_EQ(error_of_file("abc"), "io: F does not begin with 'GGUF': this is no GGUF file");
  EXPECT_EQ(error_of_file("GGUF" + raw<uint32_t>(1)),
            "io: F: GGUF version is 1, it must be 2 or 3 (little-endian)");
  EXPECT_EQ(error_of_file("GGUF" + raw<uint32_t>(3) + raw<uint64_t>(1)),
            "io: F: the metadata count at byte 16 takes 8 bytes, but only 0 follow: the file is "
            "truncated or damaged, fetch it again");
  Gguf gguf;
  gguf.add("k", 13, "");
  EXPECT_EQ(error_of_file(gguf.file()),
            "io: F: metadata 'k' has the value type 13, known are 0 to 12");
  Gguf twice;
  twice.add("k", uint32_t{1});
  twice.add("k", uint32_t{1});
  EXPECT_EQ(error_of_file(twice.file()), "io: F: metadata 'k' appears twice");
  Gguf alignment;
  alignment.add("general.alignment", uint32_t{0});
  EXPECT_EQ(error_of_file(alignment.file()),
            "io: F: general.alignment is 0, it must be from 1 to 1048576");
  Gguf deep;
  std::string nested;
  for (int i = 0; i < 5; ++i) nested += raw<uint32_t>(9) + raw<uint64_t>(1);
  deep.add("k", 9, nested);
  EXPECT_EQ(error_of_file(deep.file()), "io: F: metadata 'k' nests arrays deeper than 4");
}

TEST(Gguf, NamesWhatIsWrongWithATensor) {
  const auto tensor = [](const std::vector<uint64_t>& dims, uint32_t type) {
    Gguf gguf;
    gguf.tensor("w", dims, type, std::string(64, 'x'));
    return error_of_file(gguf.file());
  };
  EXPECT_EQ(tensor({32}, 14),
            "io: F: tensor 'w' has the type Q6_K, it must be one of F32, F16, BF16, Q4_0, Q4_1, "
            "Q8_0: convert the file to one of these");
  EXPECT_NE(tensor({32}, 99).find("has the type number 99,"), std::string::npos);
  EXPECT_EQ(tensor({1, 1, 1, 1, 1}, 0), "io: F: tensor 'w' has 5 dims, the limit is 4");
  EXPECT_EQ(tensor({UINT64_MAX}, 0), "io: F: tensor 'w' has a dim of 18446744073709551615");
  EXPECT_EQ(tensor({31}, 2), "io: F: tensor 'w': shape [31] does not fit blocks of 32 values");
  EXPECT_EQ(tensor({17}, 0),
            "io: F: tensor 'w' takes 68 bytes from byte 0 of the data, but the file holds only 64: "
            "it is truncated, fetch it again");
  Gguf twice;
  for (int i = 0; i < 2; ++i) twice.tensor("w", {1}, 0, raw(1.0F));
  EXPECT_EQ(error_of_file(twice.file()), "io: F: tensor 'w' appears twice");
  Gguf odd;
  odd.tensor("v", {1}, 0, raw(1.0F));
  odd.data.resize(4);
  odd.tensor("w", {1}, 0, raw(1.0F));
  EXPECT_EQ(error_of_file(odd.file()),
            "io: F: tensor 'w' begins at byte 4 of the data, it must be a multiple of 32");
  Gguf inside;
  inside.tensor("v", {16}, 0, std::string(64, 'x'));
  inside.data.resize(32);
  inside.tensor("w", {8}, 0, std::string(32, 'x'));
  EXPECT_EQ(error_of_file(inside.file()),
            "io: F: tensor 'w' begins at byte 32 of the data, inside the one before it, which ends "
            "at 64");
}

// Q8_0 rows of two blocks, in the file's order for llama; any part of them is read as the whole is.
TEST(Gguf, ReadsAnyPartOfQuantisedRows) {
  const ScratchDir dir;
  Gguf gguf = tiny("llama");
  std::mt19937 random(5);
  std::string blocks;
  for (int i = 0; i < 2 * 8; ++i) {
    blocks += raw(kHalf);
    for (int j = 0; j < 32; ++j) blocks += static_cast<char>(random());
  }
  gguf.tensor("blk.0.attn_q.weight", {64, 8}, 8, blocks);
  gguf.tensor("blk.0.attn_output.weight", {64, 8}, 8, blocks);
  write_text(dir / "x.gguf", gguf.file());
  const Checkpoint checkpoint = Checkpoint::open(dir / "x.gguf");
  const auto of = [&](const char* name) {
    return checkpoint.at(std::string("model.layers.0.self_attn.") + name + ".weight");
  };
  const TensorView plain = of("o_proj").load(), ordered = of("q_proj").load();
  const auto row = [](const TensorView& view, int64_t i) {
    return view.bytes.subspan(i * 128, 128);
  };
  for (const auto& [to, from] :
       std::vector<std::pair<int, int>>{{0, 0}, {1, 2}, {2, 1}, {3, 3}, {5, 6}}) {
    EXPECT_TRUE(std::ranges::equal(row(ordered, to), row(plain, from))) << to;
  }
  for (const char* name : {"o_proj", "q_proj"}) {
    const TensorView whole = of(name).load();
    for (int round = 0; round < 50; ++round) {
      const int64_t begin = random() % 512, count = random() % (512 - begin);
      std::vector<std::byte> part(2 * count);
      of(name).read(part, 2 * begin);
      EXPECT_TRUE(std::ranges::equal(part, whole.bytes.subspan(2 * begin, 2 * count)));
    }
  }
}

TEST(Gguf, RefusesWhatWouldOverflowDivideByZeroOrBeEmpty) {
  Gguf empty = tiny("llama");
  empty.tensor("rope_freqs.weight", {0}, 0, "");
  EXPECT_EQ(error_of_file(empty.file()), "io: F: tensor 'rope_freqs.weight' has a dim of 0");
  Gguf square = tiny("llama");
  square.tensor("rope_freqs.weight", {2, 2}, 0, floats({1, 1, 1, 1}));
  EXPECT_EQ(error_of_file(square.file()),
            "io: F: rope_freqs.weight has the shape [2, 2], it must have one dim of at most 4096");
  for (const char* key : {"embedding_length", "block_count", "feed_forward_length",
                          "context_length", "attention.head_count", "attention.key_length"}) {
    Gguf gguf;
    gguf.add("general.architecture", std::string("llama"));
    for (const char* name : {"embedding_length", "block_count", "feed_forward_length",
                             "context_length", "attention.head_count", "attention.key_length"}) {
      gguf.add(std::string("llama.") + name, 10,
               raw<uint64_t>(std::string_view(name) == key ? uint64_t{1} << 62 : 2));
    }
    gguf.add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    gguf.tensor("token_embd.weight", {8, 2}, 0, floats(std::vector<float>(16, 0.5F)));
    EXPECT_EQ(error_of_file(gguf.file()), std::string("io: F: metadata 'llama.") + key +
                                              "' is 4611686018427387904, the limit is 1073741824");
  }
}

TEST(Gguf, RefusesNumbersThatAreNotFiniteAndTextThatIsNotUtf8) {
  Gguf theta = tiny("llama");
  theta.add("llama.rope.scaling.type", std::string("linear"));
  theta.add("llama.rope.scaling.factor", std::numeric_limits<float>::infinity());
  EXPECT_EQ(error_of_file(theta.file()),
            "io: F: metadata 'llama.rope.scaling.factor' is inf, it must be finite");
  Gguf key;
  key.add("\xff", uint32_t{1});
  EXPECT_EQ(error_of_file(key.file()), "io: F: a metadata key is not UTF-8 at byte 32 of the file");
  Gguf value = tiny("llama");
  value.add("x", std::string("a\xff"));
  EXPECT_NE(error_of_file(value.file()).find("io: F: x is not UTF-8 at byte "), std::string::npos);
}

TEST(Gguf, BoundsTheMemoryOfItsMetadata) {
  Gguf bytes;
  bytes.add("x", 9, raw<uint32_t>(0) + raw<uint64_t>(5'000'000) + std::string(5'000'000, '1'));
  EXPECT_EQ(error_of_file(bytes.file()),
            "io: F: metadata 'x' has 5000000 values, the limit is 4194304 for all metadata "
            "together");
  EXPECT_EQ(error_of_file("GGUF" + raw<uint32_t>(3) + raw<uint64_t>(uint64_t{1} << 63) +
                          raw<uint64_t>(0)),
            "io: F: the tensor count is 9223372036854775808, the limit is 1048576");
  const ScratchDir dir;
  const std::string head = "GGUF" + raw<uint32_t>(3) + raw<uint64_t>(0) + raw<uint64_t>(1);
  write_text(dir / "x.gguf", head + raw<uint64_t>(uint64_t{1} << 33));
  std::filesystem::resize_file(dir / "x.gguf", uintmax_t{1} << 34);  // a hole
  EXPECT_EQ(error_of([&] { GgufFile file(dir / "x.gguf"); }),
            "io: " + (dir / "x.gguf").string() +
                ": a metadata key ends after byte 268435456, the limit for everything before the "
                "tensors");
}

TEST(Gguf, RefusesAFileCutAnywhere) {
  const std::string whole = tiny("llama").file();
  EXPECT_EQ(error_of_file(whole), "no error");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(error_of_file(whole.substr(0, size)), "no error") << "cut at " << size;
  }
}

TEST(Gguf, SurvivesAnyDamage) {
  const std::string whole = tiny("llama").file();
  std::mt19937 random(3);
  int refused = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ (1 + random() % 255));
    refused += error_of_file(damaged) != "no error";
  }
  EXPECT_GT(refused, 100);
}

TEST(Gguf, IsConvertedToAFolderOfBf16) {
  const ScratchDir dir;
  Gguf gguf = tiny("qwen2");
  gguf.tensor("output.weight", {2}, 1, raw(kOne) + raw(kHalf));
  write_text(dir / "x.gguf", gguf.file());
  convert_gguf(dir / "x.gguf", dir / "out", {{"a.txt", "text"}});
  EXPECT_EQ(read_file(dir / "out/a.txt"), "text");
  const Checkpoint read = Checkpoint::open(dir / "out");
  EXPECT_EQ(read.config(), gguf_config(dir / "x.gguf"));
  EXPECT_EQ(read.names(), Checkpoint::open(dir / "x.gguf").names());
  for (const std::string& name : read.names()) EXPECT_EQ(read.at(name).dtype, Dtype::kBF16);
  EXPECT_EQ(std::memcmp(read.at("lm_head.weight").load().bytes.data(),
                        raw<uint32_t>(0x3F003F80).data(), 4),
            0);
}

}  // namespace
}  // namespace twinkle
