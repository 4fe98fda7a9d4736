#include "twinkle/data/writer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "twinkle/base/error_for_test.h"
#include "twinkle/data/dataset.h"

namespace twinkle::data {
namespace {

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  int64_t below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  std::string text(const std::string& first = "") {
    static const std::vector<std::string> kPieces = {"a",
                                                     "B",
                                                     " ",
                                                     ",",
                                                     "\"",
                                                     "\n",
                                                     "\r\n",
                                                     "\\",
                                                     "{",
                                                     "}",
                                                     "[",
                                                     "]",
                                                     "'",
                                                     "\t",
                                                     "\xC3\xA9",
                                                     "\xE4\xBD\xA0",
                                                     "\xF0\x9F\x98\x80",
                                                     "7",
                                                     "\x01",
                                                     ":",
                                                     "\\\""};
    std::string out = first;
    for (int64_t n = below(12); n > 0; --n)
      out += kPieces[static_cast<size_t>(below(std::ssize(kPieces)))];
    return out;
  }

  double real() {
    const auto value = std::bit_cast<double>(random_());
    return std::isfinite(value) ? value : 0.5;
  }

  Json value(int depth) {
    switch (below(depth > 0 ? 7 : 5)) {
      case 0:
        return nullptr;
      case 1:
        return below(2) == 1;
      case 2:
        return static_cast<int64_t>(random_());
      case 3:
        return real();
      case 4:
        return Json(text());
      case 5: {
        JsonArray out;
        for (int64_t n = below(4); n > 0; --n) out.push_back(value(depth - 1));
        return out;
      }
      default:
        return row(depth - 1);
    }
  }

  Row row(int depth) {
    Row out;
    for (int64_t n = below(5); n > 0; --n) out[text()] = value(depth);
    return out;
  }

 private:
  std::mt19937_64 random_;
};

std::filesystem::path file_of(const std::string& name) {
  return std::filesystem::path(testing::TempDir()) / ("writer_test_" + name);
}

TEST(Writer, RandomRowsWrittenAsJsonAndJsonlComeBackEqual) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    Maker make(seed);
    Rows rows;
    for (int64_t n = make.below(60); n > 0; --n) rows.push_back(make.row(3));
    for (const char* name : {"random.jsonl", "random.json"}) {
      write_rows(rows, file_of(name));
      EXPECT_EQ(Dataset::read(file_of(name)).rows(), rows);
    }
  }
}

TEST(Writer, RandomTypedColumnsWrittenAsCsvComeBackEqual) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    Maker make(seed);
    Rows rows;
    for (int64_t n = 1 + make.below(60); n > 0; --n) {
      Row row;
      row["text, of any \"kind\""] = make.text("t");
      row["integer"] = make.below(1'000'000) - 500'000;
      row["real"] = make.real();
      row["flag"] = make.below(2) == 1;
      row["often empty"] = make.below(2) == 1 ? "" : make.text("x");
      rows.push_back(std::move(row));
    }
    rows.back()["often empty"] = "";
    write_rows(rows, file_of("random.csv"));
    EXPECT_EQ(Dataset::read(file_of("random.csv")).rows(), rows);
  }
}

TEST(Writer, CsvTakesAllRowsColumnsAndKeepsOneEmptyColumn) {
  EXPECT_EQ(format_rows({{{"a", 1}}, {{"b", JsonArray{1, "x"}}}}, "csv"),
            "a,b\n1,\n,\"[1,\"\"x\"\"]\"\n");
  EXPECT_EQ(format_rows({{{"a", ""}}}, "csv"), "a\n\"\"\n");
}

TEST(Writer, RefusesFormatsPlacesAndNanWithoutTouchingTheFile) {
  const Rows rows = {{{"a", 1}}};
  write_rows(rows, file_of("kept.jsonl"));
  const Rows bad = {
      {{"a", 1}}, {{"b", JsonArray{JsonObject{{"c", std::numeric_limits<double>::quiet_NaN()}}}}}};
  EXPECT_EQ(error_of([&] { write_rows(bad, file_of("kept.jsonl")); }),
            "data: row 1 field 'b' holds NaN or infinity, which JSON cannot");
  EXPECT_EQ(Dataset::read(file_of("kept.jsonl")).rows(), rows);
  EXPECT_EQ(error_of([&] { write_rows(rows, file_of("a.parquet")); }),
            "data: cannot write format 'parquet', it must be jsonl, json or csv");
  const auto below = file_of("kept.jsonl") / "folder";
  EXPECT_EQ(error_of([&] { write_rows(rows, below / "a.json"); }),
            "data: path is '" + (below / "a.json").string() +
                "', where no file can be written (Not a directory): name another place");
  const std::filesystem::path folder = testing::TempDir();
  EXPECT_EQ(error_of([&] { make_place(folder); }),
            "data: path is '" + folder.string() + "', a folder: name a file in it");
}

TEST(LineWriter, WritesBatchesAndTheRestWhenItIsFlushed) {
  const auto file = file_of("added.jsonl");
  write_rows({{{"old", 1}}}, file);
  LineWriter writer(file, 2);
  EXPECT_EQ(Dataset::read(file).size(), 1);
  const Rows rows = {{{"a", 1}}, {{"b", "\n"}}, {{"c", nullptr}}};
  for (const Row& row : rows) writer.add(row);
  EXPECT_EQ(Dataset::read(file).size(), 2);
  writer.flush();
  EXPECT_EQ(Dataset::read(file).rows(), rows);
  writer.add({{"a", std::nan("")}});
  EXPECT_EQ(error_of([&] { writer.flush(); }),
            "data: row 0 field 'a' holds NaN or infinity, which JSON cannot");
  EXPECT_EQ(Dataset::read(file).size(), 3);
  const auto below = file / "a.jsonl";
  EXPECT_EQ(error_of([&] { LineWriter(below, 1).flush(); }),
            "data: cannot add rows to " + below.string() + ": Not a directory");
}

}  // namespace
}  // namespace twinkle::data
