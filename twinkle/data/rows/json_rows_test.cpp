#include "twinkle/data/rows/json_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <fstream>
#include <functional>
#include <random>

#include "twinkle/base/error_for_test.h"

namespace twinkle::data {
namespace {

std::filesystem::path write(const std::string& name, const std::string& text) {
  const auto file = std::filesystem::path(testing::TempDir()) / ("json_rows_test_" + name);
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

TEST(JsonRows, ABrokenLineIsNamedWithItsNumberColumnAndCause) {
  const auto file = write("broken.jsonl", "{\"a\": 1}\n\n{\"a\": }\n{\"a\"\n");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(file); }),
            "data: " + file.string() + " line 3 column 7: syntax error");
  const auto cut = write("cut.jsonl", "{\"a\": 1}\n{\"a\": 1");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(cut); }),
            "data: " + cut.string() + " line 2 column 8: incomplete JSON");
  const auto array = write("array.jsonl", "[1]\n");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(array); }),
            "data: " + array.string() + " line 1: the row is an array, it must be an object");
  const auto extra = write("extra.jsonl", "{} {}\n");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(extra); }),
            "data: " + extra.string() + " line 1 column 4: extra data after the value");
  EXPECT_EQ(error_of([] { read_jsonl_rows("/nowhere"); }), "data: cannot open /nowhere");
}

TEST(JsonRows, ABadElementOfAnArrayIsNamedWithItsIndex) {
  const auto file = write("bad.json", "[{\"a\": \"],[\\\"\"}, {\"a\": [1, {}]}, 7]");
  EXPECT_EQ(error_of([&] { read_json_rows(file); }),
            "data: " + file.string() + " row 2: the row is a number, it must be an object");
  const auto open = write("open.json", "[{\"a\": 1}");
  EXPECT_EQ(error_of([&] { read_json_rows(open); }),
            "data: " + open.string() + " column 10: incomplete JSON");
  const auto comma = write("comma.json", "[{\"a\": 1},]");
  EXPECT_NE(error_of([&] { read_json_rows(comma); }).find("row 1 column 1"), std::string::npos);
}

TEST(JsonRows, ColumnsBecomeRowsAndRaggedOnesAreRefused) {
  const Table table =
      read_json_rows(write("columns.json", "{\"a\": [1, 2],\n \"b\": [\"x\", null]}"));
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[1], (Row{{"a", 2}, {"b", nullptr}}));
  const auto ragged = write("ragged.json", "{\"a\": [1], \"b\": []}");
  EXPECT_EQ(error_of([&] { read_json_rows(ragged); }),
            "data: " + ragged.string() + ": column 'b' has 0 rows, the first column has 1");
  const auto scalar = write("scalar.json", "{\"a\": 1}");
  EXPECT_EQ(error_of([&] { read_json_rows(scalar); }),
            "data: " + scalar.string() +
                ": column 'a' is a number; a JSON file holds an array of rows or an "
                "object of columns");
  const auto text = write("text.json", "\"a\"");
  EXPECT_EQ(error_of([&] { read_json_rows(text); }),
            "data: " + text.string() +
                " holds a string; a JSON file holds an array of rows or an object of columns");
  const auto empty = write("empty.json", " \n");
  EXPECT_EQ(error_of([&] { read_json_rows(empty); }),
            "data: " + empty.string() + " is empty, it must hold a JSON array of rows");
}

TEST(JsonRows, AJsonFileMayHoldLinesAndAnEmptyArrayHasNoRows) {
  EXPECT_EQ(read_json_rows(write("lines.json", "{\"a\": 1}\n{\"a\": 2}\n")).rows.size(), 2u);
  EXPECT_EQ(read_json_rows(write("none.json", "[ ]")).rows.size(), 0u);
}

TEST(JsonRows, StreamingInSmallBlocksReadsEveryLineOnce) {
  std::string text = "\xEF\xBB\xBF";
  for (int i = 0; i < 500; ++i)
    text += "{\"i\": " + std::to_string(i) + "}\r\n" + (i % 7 ? "" : "\n");
  const auto file = write("stream.jsonl", text);
  for (const size_t block : {1u, 7u, 64u, 100000u}) {
    Table table{.name = "f", .unit = "line"};
    JsonlReader reader(file, block);
    while (reader.next(table)) {
    }
    ASSERT_EQ(table.rows.size(), 500u);
    for (int i = 0; i < 500; ++i) EXPECT_EQ(table.rows[i].at("i").as_int64(), i);
    EXPECT_EQ(table.places, read_jsonl_rows(file).places);
  }
}

TEST(JsonRows, DoublesAreReadExactly) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    EXPECT_EQ(parse_value(boost::json::serialize(Json(value)), "t").as_double(), value);
  }
}

}  // namespace
}  // namespace twinkle::data
