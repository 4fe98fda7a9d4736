#include "twinkle/io/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <optional>

#include "twinkle/io/limit_for_test.h"
#include "twinkle/io/safetensors.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {
namespace {

namespace fs = std::filesystem;

// A file with one U8 tensor [3] per name, of the bytes 1, 2, 3.
void write_weights(const fs::path& file, const std::vector<std::string>& names) {
  static constexpr std::array<std::byte, 3> kBytes = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::vector<TensorView> views;
  for (const std::string& name : names) {
    views.push_back({.name = name, .dtype = Dtype::kU8, .shape = {3}, .bytes = kBytes});
  }
  write_safetensors(file, views);
}

std::string error_of_open(const fs::path& path) {
  return error_of([&] { Checkpoint::open(path); });
}

TEST(Checkpoint, ReadsOneFileOfAnyNameAndTheConfigBesideIt) {
  const ScratchDir dir;
  write_weights(dir / "pytorch.safetensors", {"b", "a"});
  write_text(dir / "config.json", R"({"model_type": "llama"})");
  for (const fs::path& path : {dir.path(), dir / "pytorch.safetensors"}) {
    const Checkpoint checkpoint = Checkpoint::open(path);
    EXPECT_EQ(checkpoint.path(), path);
    EXPECT_EQ(checkpoint.names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(checkpoint.metadata().at("format"), "pt");
    EXPECT_EQ(checkpoint.at("b").load().bytes[2], std::byte{3});
    EXPECT_TRUE(checkpoint.contains("a"));
    EXPECT_FALSE(checkpoint.contains("c"));
    EXPECT_EQ(get<std::string>(checkpoint.config(), "model_type"), "llama");
  }
}

TEST(Checkpoint, KeepsItsBytesForEveryCopyOfIt) {
  const ScratchDir dir;
  write_weights(dir / "model.safetensors", {"a"});
  std::optional<Checkpoint> first = Checkpoint::open(dir.path());
  const Checkpoint copy = *first;
  const TensorView view = first->at("a").load();
  first.reset();
  fs::remove(dir / "model.safetensors");
  EXPECT_EQ(view.bytes[0], std::byte{1});
  EXPECT_EQ(copy.at("a").load().bytes[2], std::byte{3});
}

TEST(Checkpoint, NamesATensorThatIsMissing) {
  const ScratchDir dir;
  write_weights(dir / "model.safetensors", {});
  const Checkpoint checkpoint = Checkpoint::open(dir.path());
  try {
    checkpoint.at("lm_head.weight");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code, Code::kNotFound);
    EXPECT_EQ(e.what(), "io: " + dir.path().string() + " has no tensor 'lm_head.weight'");
  }
  EXPECT_EQ(error_of([&] { checkpoint.config(); }),
            "json: cannot open " + (dir / "config.json").string());
}

TEST(Checkpoint, SaysWhatIsNoFileAndWaitsForNobody) {
  const ScratchDir dir;
  ASSERT_EQ(::mkfifo((dir / "model.safetensors").c_str(), 0600), 0);
  EXPECT_EQ(error_of_open(dir.path()), "io: " + (dir / "model.safetensors").string() +
                                           " is a FIFO, it must be a regular file");
  fs::remove(dir / "model.safetensors");
  fs::create_symlink("model.safetensors", dir / "model.safetensors");
  EXPECT_EQ(error_of_open(dir.path()),
            "io: cannot open " + (dir / "model.safetensors").string() +
                ": Too many levels of symbolic links; put the file itself "
                "there");
  fs::remove(dir / "model.safetensors");
  write_weights(dir / "model.safetensors", {});
  fs::create_directory(dir / "config.json");
  EXPECT_EQ(error_of([&] { Checkpoint::open(dir.path()).config(); }),
            "json: " + (dir / "config.json").string() + " is a folder, it must be a regular file");
}

TEST(Checkpoint, ReadsShardsAndNamesAMissingOne) {
  const ScratchDir dir;
  const fs::path index = dir / "model.safetensors.index.json";
  write_text(index, R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})");
  write_weights(dir / "1.safetensors", {"a", "unlisted"});
  EXPECT_EQ(error_of_open(dir.path()),
            "io: " + index.string() +
                " names the shard '2.safetensors', but there is no such file: fetch the checkpoint "
                "again");
  write_weights(dir / "2.safetensors", {"c"});
  EXPECT_EQ(error_of_open(dir.path()),
            "io: " + index.string() + " says that tensor 'b' is in '2.safetensors', but it is not");
  write_weights(dir / "2.safetensors", {"b"});
  EXPECT_EQ(Checkpoint::open(dir.path()).names(), (std::vector<std::string>{"a", "b"}));
}

TEST(Checkpoint, RefusesABrokenIndex) {
  const ScratchDir dir;
  const fs::path index = dir / "model.safetensors.index.json";
  const auto error = [&](const std::string& text) {
    write_text(index, text);
    return error_of_open(dir.path());
  };
  const std::string where = "io: " + index.string();
  EXPECT_EQ(error("{}"), where + ": 'weight_map' must be an object of tensor names and file names");
  EXPECT_EQ(error(R"({"weight_map": {"a": 1}})"),
            where + ": 'weight_map' of 'a' must be a file name");
  EXPECT_EQ(error(R"({"weight_map": {"a": "../x.safetensors"}})"),
            where + ": shard '../x.safetensors' must be a file name without folders");
}

TEST(Checkpoint, ATrainingStateIsNoModel) {
  const ScratchDir dir;
  write_weights(dir / "training.safetensors", {"a"});
  EXPECT_EQ(error_of_open(dir.path()),
            "io: " + dir.path().string() +
                " holds no weights: a checkpoint has model.safetensors, "
                "model.safetensors.index.json, one *.safetensors or one *.gguf");
}

TEST(Checkpoint, WeightsThatArePicklesAloneAreRefusedByName) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    const ScratchDir dir;
    write_text(dir / name, "");
    EXPECT_EQ(error_of_open(dir.path()),
              "io: " + dir.path().string() +
                  " holds its weights as pytorch_model.bin, a pickle, which may run code and is "
                  "not read: save it again as safetensors");
    write_weights(dir / "model.safetensors", {"a"});
    EXPECT_EQ(Checkpoint::open(dir.path()).names(), std::vector<std::string>{"a"});
  }
}

TEST(Checkpoint, SaysWhyAFolderCannotBeRead) {
  const ScratchDir dir;
  const std::string text = error_of([&] {
    const LimitForTest tight(RLIMIT_NOFILE, 3);
    Checkpoint::open(dir.path());
  });
  EXPECT_EQ(text, "io: cannot read the folder " + dir.path().string() + ": Too many open files");
}

TEST(Checkpoint, SaysWhatAFolderLacks) {
  const ScratchDir dir;
  const std::string path = dir.path().string();
  EXPECT_EQ(error_of_open(dir / "none"), "io: there is no checkpoint at " + path + "/none");
  EXPECT_EQ(error_of_open(dir.path()),
            "io: " + path +
                " holds no weights: a checkpoint has model.safetensors, "
                "model.safetensors.index.json, one *.safetensors or one *.gguf");
  write_weights(dir / "adapter_model.safetensors", {"a"});
  write_text(dir / "adapter_config.json", "{}");
  EXPECT_EQ(error_of_open(dir.path()),
            "io: " + path +
                " is a PEFT adapter and holds no weights: a checkpoint has model.safetensors, "
                "model.safetensors.index.json, one *.safetensors or one *.gguf; name the base "
                "model's directory");
  write_weights(dir / "1.safetensors", {"a"});
  write_weights(dir / "training.safetensors", {"b"});
  EXPECT_EQ(Checkpoint::open(dir.path()).names(), std::vector<std::string>{"a"})
      << "an adapter and a training state are no model";
  write_weights(dir / "2.safetensors", {"a"});
  EXPECT_EQ(error_of_open(dir.path()),
            "io: " + path +
                " holds 2 *.safetensors files and no index, so which one is meant is unclear: name "
                "the file");
}

}  // namespace
}  // namespace twinkle
