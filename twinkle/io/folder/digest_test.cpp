#include "twinkle/io/folder/digest.h"

#include <gtest/gtest.h>

#include <functional>

#include "twinkle/io/limit_for_test.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle {
namespace {

constexpr size_t kLarge = 20'000;  // more than the samples of a file hold

void write_digested(const ScratchDir& dir) {
  write_text(dir / "model.safetensors", std::string(kLarge, 'x'));
  write_text(dir / "model.safetensors.index.json", std::string(kLarge, '{'));
  write_text(dir / "trainer_state.json", std::string(kLarge, '{'));
  write_text(dir / "config.json", "{}");
  write_text(dir / "README.md", dir.path().string());  // nobody reads it
}

// Compares digests of folders that differ by `change` only.
bool is_told(const std::function<void(const ScratchDir& dir)>& change) {
  const ScratchDir same, other;
  write_digested(same);
  write_digested(other);
  EXPECT_EQ(digest_of_files(same.path()), digest_of_files(other.path()));
  change(other);
  return digest_of_files(same.path()) != digest_of_files(other.path());
}

void put(const std::filesystem::path& file, size_t at) {
  std::string text = read_text(file);
  text[at] = '!';
  write_text(file, text);
}

TEST(DigestOfFiles, TellsSizesNamesAndWhatLiesAtTheBeginningTheMiddleAndTheEndOfWeights) {
  for (const size_t at : {size_t{0}, size_t{4095}, kLarge / 2, kLarge / 2 + 4095, kLarge - 1})
    EXPECT_TRUE(is_told([&](const ScratchDir& dir) { put(dir / "model.safetensors", at); })) << at;
  EXPECT_FALSE(is_told([](const ScratchDir& dir) { put(dir / "model.safetensors", 6000); }));
  EXPECT_TRUE(is_told([](const ScratchDir& dir) {
    write_text(dir / "model.safetensors", std::string(kLarge + 1, 'x'));
  }));
  EXPECT_TRUE(is_told([](const ScratchDir& dir) {
    std::filesystem::rename(dir / "model.safetensors", dir / "other.safetensors");
  }));
}

TEST(DigestOfFiles, TellsEveryByteOfWhatSaysWhereWeightsAreAndNothingOfHowTrainingStands) {
  const auto tells = [](const char* name) {
    return is_told([&](const ScratchDir& dir) { put(dir / name, 6000); });
  };
  EXPECT_TRUE(tells("model.safetensors.index.json"));
  EXPECT_FALSE(tells("trainer_state.json"));
  EXPECT_TRUE(is_told([](const ScratchDir& dir) { write_text(dir / "config.json", "[]"); }));
}

TEST(DigestOfFiles, RefusesAFolderThatCannotBeRead) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the undefined-behaviour sanitizer opens a pipe for its checks";
#endif
  const ScratchDir dir;
  write_digested(dir);
  const std::string error = [&] {
    const LimitForTest none(RLIMIT_NOFILE, 0);
    return invalid_of([&] { digest_of_files(dir.path()); });
  }();
  EXPECT_EQ(error, "io: cannot read the folder " + dir.path().string() + ": Too many open files");
}

TEST(DigestOfFiles, OfOneFileKnowsNothingOfItsName) {
  const ScratchDir dir;
  write_text(dir / "a.gguf", std::string(kLarge, 'x'));
  write_text(dir / "b.gguf", std::string(kLarge, 'x'));
  EXPECT_EQ(digest_of_files(dir / "a.gguf"), digest_of_files(dir / "b.gguf"));
  put(dir / "b.gguf", kLarge / 2);
  EXPECT_NE(digest_of_files(dir / "a.gguf"), digest_of_files(dir / "b.gguf"));
  expect_error("no-such.gguf", [&] { digest_of_files(dir / "no-such.gguf"); });
}

TEST(DigestOfTexts, ChangesWithTheTokenizerAndNotWithTheWeights) {
  const ScratchDir dir;
  write_text(dir / "tokenizer.json", "a");
  write_text(dir / "model.safetensors", "b");
  const std::string before = digest_of_texts(dir.path());
  write_text(dir / "model.safetensors", "c");
  EXPECT_EQ(digest_of_texts(dir.path()), before);
  write_text(dir / "tokenizer.json", "d");
  EXPECT_NE(digest_of_texts(dir.path()), before);
  EXPECT_EQ(digest_of_texts(dir / "a.gguf"), digest_of_texts(dir / "b.gguf"));
}

}  // namespace
}  // namespace twinkle
