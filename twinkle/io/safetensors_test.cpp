#include "twinkle/io/safetensors.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "twinkle/io/checkpoint.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

// A file of `header` and that many data bytes, 0, 1, 2, ...
std::string file_of(const std::string& header, size_t num_data_bytes = 0) {
  const uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  text += header;
  for (size_t i = 0; i < num_data_bytes; ++i) text += static_cast<char>(i);
  return text;
}

// Tensors with bytes of their own.
struct Tensors {
  std::vector<TensorView> views;
  std::vector<std::vector<std::byte>> storage;
};

Tensors random_tensors(std::mt19937& random, int count) {
  Tensors made;
  made.storage.reserve(count);
  for (int i = 0; i < count; ++i) {
    TensorView view{.name = "layer." + std::to_string(i) + ".\"w\"\\é",
                    .dtype = static_cast<Dtype>(random() % 10),
                    .shape = {},
                    .bytes = {}};
    for (uint32_t dims = random() % 4; dims > 0; --dims) view.shape.push_back(random() % 5);
    auto& bytes = made.storage.emplace_back(*num_elements(view.shape) * size_of(view.dtype));
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    view.bytes = bytes;
    made.views.push_back(view);
  }
  return made;
}

void expect_equal(const TensorView& read, const TensorView& written) {
  EXPECT_EQ(read.dtype, written.dtype) << written.name;
  EXPECT_EQ(read.shape, written.shape) << written.name;
  EXPECT_TRUE(
      std::equal(read.bytes.begin(), read.bytes.end(), written.bytes.begin(), written.bytes.end()))
      << written.name;
}

// The error of reading a file of these bytes, without its "io: FILE: " or "io: FILE ".
std::string file_error(const std::string& bytes) {
  static const ScratchDir dir(memory_folder());  // one for many calls
  const fs::path file = dir / "x.safetensors";
  write_text(file, bytes);
  std::string text = error_of([&] { SafetensorsFile opened(file); });
  const size_t found = text.find(file.string());
  if (found == text.npos) return text;
  const size_t end = found + file.string().size();
  text.erase(found, end - found + (text[end] == ':' ? 2 : 1));
  return text;
}

TEST(Safetensors, ReadsBackRandomTensorsInOneFileAndInShards) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    const ScratchDir dir;
    const Tensors made = random_tensors(random, static_cast<int>(random() % 8));
    SafetensorsOptions options;
    options.metadata["round"] = std::to_string(round);
    options.max_shard_bytes = round % 2 ? 1 + random() % 200 : 0;
    write_model(dir.path(), made.views, options);
    const Checkpoint read = Checkpoint::open(dir.path());
    ASSERT_EQ(read.names().size(), made.views.size());
    for (const TensorView& view : made.views) expect_equal(read.at(view.name).load(), view);
    EXPECT_EQ(read.metadata(), options.metadata);
  }
}

TEST(Safetensors, AlignsEveryTensorToItsElement) {
  const ScratchDir dir;
  const std::vector<std::byte> bytes(16);
  const std::vector<TensorView> views = {
      {.name = "a", .dtype = Dtype::kU8, .shape = {3}, .bytes = std::span(bytes).first(3)},
      {.name = "b", .dtype = Dtype::kF64, .shape = {2}, .bytes = bytes},
      {.name = "c", .dtype = Dtype::kBF16, .shape = {5}, .bytes = std::span(bytes).first(10)}};
  write_safetensors(dir / "x.safetensors", views);
  const std::string text = read_text(dir / "x.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, text.data(), 8);
  const Json header = parse_json(text.substr(8, length), "header");
  for (const TensorView& view : views) {
    const int64_t begin = header.at(view.name).at("data_offsets").at(0).as_int64();
    EXPECT_EQ((8 + static_cast<int64_t>(length) + begin) % size_of(view.dtype), 0);
  }
}

TEST(Safetensors, FillsShardsUpToTheLimitAndGivesALargerTensorItsOwn) {
  const ScratchDir dir;
  const std::vector<std::byte> bytes(10);
  std::vector<TensorView> views;
  for (const int64_t size : {4, 4, 10, 3, 5, 1}) {
    views.push_back({.name = "t" + std::to_string(views.size()),
                     .dtype = Dtype::kU8,
                     .shape = {size},
                     .bytes = std::span(bytes).first(size)});
  }
  SafetensorsOptions options;
  options.max_shard_bytes = 8;
  write_model(dir.path(), views, options);
  const Json index = read_json(dir / "model.safetensors.index.json");
  EXPECT_EQ(get<int64_t>(*find(index, "metadata"), "total_size"), 27);
  const Json& map = *find(index, "weight_map");
  EXPECT_EQ(get<std::string>(map, "t1"), "model-00001-of-00004.safetensors");
  EXPECT_EQ(get<std::string>(map, "t2"), "model-00002-of-00004.safetensors");
  EXPECT_EQ(get<std::string>(map, "t4"), "model-00003-of-00004.safetensors");
  EXPECT_EQ(get<std::string>(map, "t5"), "model-00004-of-00004.safetensors");
}

TEST(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  const ScratchDir dir;
  const std::vector<std::byte> bytes(4);
  TensorView view{.name = "w", .dtype = Dtype::kF32, .shape = {2}, .bytes = bytes};
  const auto write = [&](std::vector<TensorView> views) {
    return error_of([&] { write_safetensors(dir / "x.safetensors", views); });
  };
  EXPECT_EQ(write({view}), "io: tensor 'w': shape [2] of F32 does not fit its 4 bytes");
  view.shape = {1};
  EXPECT_EQ(write({view, view}), "io: tensor 'w' is given twice");
  view.name = "__metadata__";
  EXPECT_EQ(write({view}), "io: a tensor cannot be named '__metadata__'");
  SafetensorsOptions options;
  options.max_shard_bytes = -1;
  EXPECT_EQ(error_of([&] { write_model(dir.path(), {}, options); }),
            "io: max_shard_bytes is -1, it must be at least 0");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(Safetensors, NamesWhatIsWrongWithTheFile) {
  EXPECT_EQ(
      file_error("abc"),
      "io: is 3 bytes, a safetensors file has at least 8: it is truncated or of another kind");
  EXPECT_EQ(file_error("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
            "io: is a Git LFS pointer, not the file itself; fetch it with: git lfs pull");
  EXPECT_EQ(file_error("GGUFGGUFxx"),
            "io: header length is 5068035327123605319, it must be at most 100000000: this is no "
            "safetensors file");
  EXPECT_EQ(
      file_error(file_of("{}  ").substr(0, 10)),
      "io: header length is 4, but only 2 bytes follow: the file is truncated, fetch it again");
  EXPECT_EQ(file_error(file_of("[]")), "io: the header must be a JSON object");
  EXPECT_EQ(file_error(file_of("{}", 3)),
            "io: 3 bytes follow the last tensor, which ends at byte 0");
  EXPECT_EQ(file_error(file_of(R"({"__metadata__":3})")), "io: '__metadata__' must be an object");
  EXPECT_EQ(file_error(file_of(R"({"__metadata__":{"n":3}})")),
            "io: metadata 'n' must be a string");
  EXPECT_NE(file_error(file_of("{\"a\":")).find("incomplete"), std::string::npos);
}

TEST(Safetensors, NamesWhatIsWrongWithATensor) {
  const auto tensor = [](const std::string& fields) {
    return file_error(file_of(R"({"w":{)" + fields + "}}", 8));
  };
  EXPECT_EQ(tensor(R"("dtype":3)"), "io: tensor 'w': 'dtype' must be a string");
  EXPECT_EQ(tensor(R"("dtype":"F8_E5M2")"),
            "io: tensor 'w': dtype is 'F8_E5M2', it must be one of F64, F32, F16, BF16, I64, I32, "
            "I16, I8, U8, BOOL, F8_E4M3");
  EXPECT_EQ(tensor(R"("dtype":"F32")"), "io: tensor 'w': 'shape' must be a list of integers");
  EXPECT_EQ(tensor(R"("dtype":"F32","shape":[-1])"),
            "io: tensor 'w': 'shape' holds -1, it must hold integers from 0 to 2^63-1");
  EXPECT_EQ(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])"),
            "io: tensor 'w': 'data_offsets' has 1 values, it must have 2");
  EXPECT_EQ(tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"),
            "io: tensor 'w': begins at byte 8 and ends at byte 0, before it begins");
  EXPECT_EQ(tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,12])"),
            "io: tensor 'w': ends at byte 12 of the data, but the file holds only 8: it is "
            "truncated, fetch it again");
  EXPECT_EQ(tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
            "io: tensor 'w': shape [3] of F32 does not fit its 8 bytes");
  EXPECT_EQ(tensor(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8])"),
            "io: tensor 'w': shape [4611686018427387904, 4] of F32 does not fit its 8 bytes");
  EXPECT_EQ(tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"),
            "io: tensor 'w' begins at byte 4 of the data, it must begin at 0, where the one before "
            "it ends");
  EXPECT_EQ(file_error(file_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                               R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                               3)),
            "io: tensor 'b' begins at byte 1 of the data, it must begin at 2, where the one before "
            "it ends");
}

// torch and NumPy multiply the dims that are not 0 to get strides.
TEST(Safetensors, RefusesAShapeOfNoElementsWhoseStridesWouldOverflow) {
  const auto error = [](const std::string& shape) {
    return file_error(
        file_of(R"({"w":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,0]}})"));
  };
  EXPECT_EQ(error("0,4611686018427387904"),
            "io: tensor 'w': shape [0, 4611686018427387904] of F32 does not fit its 0 bytes");
  EXPECT_EQ(error("4611686018427387904,0"),
            "io: tensor 'w': shape [4611686018427387904, 0] of F32 does not fit its 0 bytes");
  EXPECT_EQ(error("0,1000000"), "no error");
}

TEST(Safetensors, RefusesAHeaderOfTooManyValues) {
  std::string header = R"({"w":[0)";
  for (int i = 0; i < (1 << 22); ++i) header += ",0";
  EXPECT_NE(file_error(file_of(header + "]}")).find("more than 4194304 values"), std::string::npos);
}

TEST(Safetensors, KnowsATensorBeforeAnyOfItsBytesIsRead) {
  const ScratchDir dir;
  const int64_t size = int64_t{1} << 40;
  write_text(dir / "x.safetensors", file_of(R"({"w":{"dtype":"U8","shape":[1048576,1048576],)"
                                            R"("data_offsets":[0,1099511627776]}})"));
  fs::resize_file(dir / "x.safetensors", fs::file_size(dir / "x.safetensors") + size);  // a hole
  const SafetensorsFile file(dir / "x.safetensors");
  const StoredTensor& w = file.tensors()[0];
  EXPECT_EQ(w.name, "w");
  EXPECT_EQ(w.num_bytes(), size);
  std::array<std::byte, 3> row{std::byte{1}};
  w.read(row, size - 3);
  EXPECT_EQ(row[0], std::byte{0});
}

TEST(Safetensors, AFileThatIsCutWhileATensorIsReadIsAnError) {
  const ScratchDir dir;
  std::mt19937 random(5);
  const Tensors made = random_tensors(random, 4);
  write_safetensors(dir / "x.safetensors", made.views);
  const SafetensorsFile file(dir / "x.safetensors");
  fs::resize_file(dir / "x.safetensors", fs::file_size(dir / "x.safetensors") - 1);
  EXPECT_NE(invalid_of([&] { file.tensors().back().load(); }).find("cut or replaced meanwhile"),
            std::string::npos);
}

TEST(Safetensors, RefusesANameThatIsThereTwice) {
  const std::string one = R"("w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_EQ(file_error(file_of("{" + one + "," + one + "}", 2)),
            "io: tensor 'w' is in the header twice");
  const std::string escaped = R"("\u0077":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  EXPECT_EQ(file_error(file_of("{" + one + "," + escaped + "}", 2)),
            "io: the header has 2 keys, but only 1 different ones");
}

// A valid file to damage.
std::string valid_file() {
  const ScratchDir dir;
  std::mt19937 random(5);
  write_safetensors(dir / "x.safetensors", random_tensors(random, 4).views);
  return read_text(dir / "x.safetensors");
}

TEST(Safetensors, RefusesAFileCutAnywhere) {
  const std::string whole = valid_file();
  EXPECT_EQ(file_error(whole), "no error");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(file_error(whole.substr(0, size)), "no error") << "cut at " << size;
  }
}

TEST(Safetensors, SurvivesAnyDamageOfItsHeader) {
  const std::string whole = valid_file();
  uint64_t length = 0;
  std::memcpy(&length, whole.data(), 8);
  std::mt19937 random(3);
  int refused = 0;
  for (size_t at = 0; at < 8 + length; ++at) {
    for (int round = 0; round < 4; ++round) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 + random() % 255));
      refused += file_error(damaged) != "no error";  // a name may change unnoticed
    }
  }
  EXPECT_GT(refused, static_cast<int>(3 * length));
}

}  // namespace
}  // namespace twinkle
