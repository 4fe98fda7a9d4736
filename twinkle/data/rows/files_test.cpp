#include "twinkle/data/rows/files.h"

#include <gtest/gtest.h>

#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::data {
namespace {

std::string names(const std::vector<std::filesystem::path>& files) {
  std::string out;
  for (const auto& file : files) out += file.filename().string() + " ";
  return out;
}

TEST(FilesAt, OfAFolderAreThoseWithTheSplitInTheirNameOrOfTheUsualOneAll) {
  const ScratchDir dir;
  for (const char* name : {"b.csv", "A-Test.JSONL", "c.parquet", "test.xml", "notes"})
    write_text(dir / name, "");
  EXPECT_EQ(names(files_at(dir.path())), "A-Test.JSONL b.csv c.parquet ");
  EXPECT_EQ(names(files_at(dir.path(), "tEST")), "A-Test.JSONL ");
  write_text(dir / "my-train.txt", "");
  EXPECT_EQ(names(files_at(dir.path())), "my-train.txt ");
  EXPECT_EQ(error_of([&] { files_at(dir.path(), "val"); }),
            "data: split is 'val', which is in no file's name in " + dir.path().string() +
                "; there are A-Test.JSONL, b.csv, c.parquet, my-train.txt: name one of them as "
                "dataset_id, or leave split out to read all");
  for (int i = 0; i < 5; ++i) write_text(dir / ("d" + std::to_string(i) + ".json"), "");
  expect_error("d3.json, d4.json, ...: name one", [&] { files_at(dir.path(), "val"); });
}

TEST(FilesAt, OfAFileAreItselfAndALanceFolderCountsAsOne) {
  const ScratchDir dir;
  const std::string file = (dir / "B-test.CSV").string();
  EXPECT_EQ(files_at(file), std::vector<std::filesystem::path>{file});
  EXPECT_EQ(names(files_at(file, "Test")), "B-test.CSV ");
  EXPECT_EQ(error_of([&] { files_at(file, "val"); }),
            "data: split is 'val', which is not in the name of " + file +
                ": leave split out to read the file");
  std::filesystem::create_directory(dir / "a.lance");
  EXPECT_EQ(names(files_at(dir / "a.lance")), "a.lance ");
}

TEST(FilesAt, NamesWhatHasNoRows) {
  const ScratchDir dir;
  const std::string all = ".jsonl, .json, .csv, .tsv, .txt, .parquet, .pq, .arrow, .lance";
  EXPECT_EQ(error_of([] { files_at("a.XML"); }),
            "data: a.XML has extension '.XML', it must be one of " + all);
  EXPECT_EQ(error_of([&] { files_at(dir.path()); }),
            "data: " + dir.path().string() + " holds no file of " + all);
}

TEST(KindOfFile, SaysWhoReadsAFile) {
  EXPECT_EQ(kind_of_file("a/b.JSONL"), FileKind::kLines);
  EXPECT_EQ(kind_of_file("b.tsv"), FileKind::kWhole);
  EXPECT_EQ(kind_of_file("b.Parquet"), FileKind::kTable);
  EXPECT_EQ(kind_of_file("jsonl"), FileKind::kOther);
  EXPECT_EQ(kind_of_file(".jsonl"), FileKind::kOther);
}

}  // namespace
}  // namespace twinkle::data
