#include "twinkle/io/checkpoint.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

namespace twinkle {
namespace {

namespace fs = std::filesystem;

std::string file_text(const std::string& header, size_t num_data_bytes) {
  const uint64_t length = header.size();
  std::string text(8, '\0');
  std::memcpy(text.data(), &length, 8);
  text += header;
  for (size_t i = 0; i < num_data_bytes; ++i) text += static_cast<char>(i);
  return text;
}

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    dir_ = fs::temp_directory_path() / ("checkpoint_test." + std::to_string(::getpid()));
    fs::create_directories(dir_);
  }
  ~CheckpointTest() override { fs::remove_all(dir_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / name, std::ios::binary) << text;
  }

  std::string error_of_open() {
    try {
      Checkpoint::open(dir_);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }

  fs::path dir_;
};

TEST_F(CheckpointTest, ReadsOneFile) {
  write("model.safetensors",
        file_text(R"({"b":{"dtype":"F32","shape":[1,2],"data_offsets":[2,10]},)"
                  R"("a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
                  R"("__metadata__":{"format":"pt"}} )",
                  10));
  const Checkpoint checkpoint = Checkpoint::open(dir_);
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(checkpoint.metadata().at("format"), "pt");
  const TensorView b = checkpoint.at("b");
  EXPECT_EQ(b.dtype, Dtype::kF32);
  EXPECT_EQ(b.shape, (std::vector<int64_t>{1, 2}));
  ASSERT_EQ(b.bytes.size(), 8U);
  EXPECT_EQ(b.bytes[0], std::byte{2});
  EXPECT_TRUE(checkpoint.contains("a"));
  EXPECT_FALSE(checkpoint.contains("c"));
}

TEST_F(CheckpointTest, NamesATensorThatIsMissing) {
  write("model.safetensors", file_text("{}", 0));
  try {
    Checkpoint::open(dir_).at("lm_head.weight");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kNotFound);
    EXPECT_EQ(e.what(), "io: " + dir_.string() + " has no tensor 'lm_head.weight'");
  }
}

TEST_F(CheckpointTest, ReadsShardsAndNamesAMissingOne) {
  write("model.safetensors.index.json",
        R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})");
  write("1.safetensors", file_text(R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 3));
  EXPECT_EQ(error_of_open(), "io: " + (dir_ / "model.safetensors.index.json").string() +
                                 " names the shard '2.safetensors', but there is no such file: "
                                 "fetch the checkpoint again");
  write("2.safetensors", file_text(R"({"b":{"dtype":"I8","shape":[0],"data_offsets":[0,0]}})", 0));
  const Checkpoint checkpoint = Checkpoint::open(dir_);
  EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(checkpoint.at("a").bytes[2], std::byte{2});
}

}  // namespace
}  // namespace twinkle
