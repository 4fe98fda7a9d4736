#include "twinkle/data/rows/json_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <fstream>
#include <functional>
#include <limits>
#include <random>

#include "twinkle/base/error_for_test.h"

namespace twinkle::data {
namespace {

std::filesystem::path rows_file(const std::string& name, const std::string& text) {
  const auto file = std::filesystem::path(testing::TempDir()) / ("json_rows_test_" + name);
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

TEST(JsonRows, ABrokenLineIsNamedWithItsNumberColumnAndCause) {
  const auto file = rows_file("broken.jsonl", "{\"a\": 1}\n\n{\"a\": }\n{\"a\"\n");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(file); }),
            "data: " + file.string() + " line 3 column 7: syntax error");
  const auto cut = rows_file("cut.jsonl", "{\"a\": 1}\n{\"a\": 1");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(cut); }),
            "data: " + cut.string() +
                " line 2 column 8: incomplete JSON; each line of a .jsonl "
                "file holds a whole row");
  const auto pretty = rows_file("pretty.jsonl", "[\n  {\n    \"a\": 1\n  }\n]\n");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(pretty); }),
            "data: " + pretty.string() +
                " line 1 column 2: incomplete JSON; the file holds a JSON "
                "list of many lines: rename it to .json");
  const auto latin = rows_file("latin.jsonl", "{\"a\": 1}\n{\"a\": \"caf\xE9\"}\n");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(latin); }),
            "data: " + latin.string() + " line 2 column 11: invalid UTF-8; save the file as UTF-8");
  const auto wide = rows_file("wide.json", std::string("\xFF\xFE[\0{\0", 6));
  EXPECT_EQ(
      error_of([&] { read_json_rows(wide); }),
      "data: " + wide.string() + " line 1 column 1: UTF-16, not UTF-8; save the file as UTF-8");
  const auto array = rows_file("array.jsonl", "[1]\n");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(array); }),
            "data: " + array.string() +
                " line 1: the row is an array, it must be an object; the file of one JSON list is "
                "named .json");
  const auto extra = rows_file("extra.jsonl", "{} {}\n");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(extra); }),
            "data: " + extra.string() + " line 1 column 4: extra data after the value");
  EXPECT_EQ(error_of([] { read_jsonl_rows("/nowhere"); }), "data: cannot open /nowhere");
}

TEST(JsonRows, ABadElementOfAnArrayIsNamedWithItsLineAndIndex) {
  const auto error = [](const std::string& name, const std::string& text) {
    const auto file = rows_file(name, text);
    const std::string said = error_of([&] { read_json_rows(file); });
    const std::string begin = "data: " + file.string();
    EXPECT_EQ(said.find(begin), 0u) << said;
    return said.substr(begin.size());
  };
  EXPECT_EQ(error("bad.json", "[{\"a\": \"],[\\\"\"}, {\"a\": [1, {}]}, 7]"),
            " line 1, row 2: the row is a number, it must be an object");
  EXPECT_EQ(error("lines.json", "\n[\n  {\"a\": \"],[\\\"\"},\n\n  {\n   \"a\": }, 7]"),
            " line 6 column 9, row 1: syntax error");
  EXPECT_EQ(error("second.json", "[{\"a\": 1}, {\"a\" 1}]"),
            " line 1 column 17, row 1: syntax error");
  EXPECT_EQ(error("null.json", "[\n{\"a\": 1},\n  null\n]"),
            " line 3, row 1: the row is null, it must be an object");
  EXPECT_EQ(error("open.json", "[{\"a\": 1}"), " line 1 column 10: incomplete JSON");
  EXPECT_EQ(error("after.json", "[{\"a\": 1}]\n {}"),
            " line 2 column 2: extra data after the value");
  EXPECT_EQ(error("comma.json", "[{\"a\": 1},]"), " line 1 column 11, row 1: incomplete JSON");
  EXPECT_EQ(error("columns.json", "\xEF\xBB\xBF{\n\"a\": [1,,]}"),
            " line 2 column 9: syntax error");
}

TEST(JsonRows, EveryRowOfAnArrayKnowsTheLineThatItBeginsIn) {
  const Table table = read_json_rows(
      rows_file("where.json", "\xEF\xBB\xBF[ {\"a\": 1}, {\n\"a\": 2}\n,{\"a\": 3},\r\n\r\n{}]"));
  EXPECT_EQ(table.lines, (std::vector<int64_t>{1, 1, 3, 5}));
  EXPECT_EQ(table.places, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_TRUE(read_json_rows(rows_file("columns.json", "{\"a\": [1]}")).lines.empty());
}

TEST(JsonRows, NumbersOutOfRangeAreNamedAsTheyAreWritten) {
  const std::string number = " is beyond the range of a double, 1.8e308; write it as a string";
  const std::string integer = " is beyond 64 bits; write it as a string";
  const auto lines = rows_file("large.jsonl", "{\"a\": 1e308}\n{\"a\": [-1E+999, 2]}\n");
  EXPECT_EQ(error_of([&] { read_jsonl_rows(lines); }),
            "data: " + lines.string() + " line 2 column 8: the number -1E+999" + number);
  const auto array = rows_file("large.json", "[{\"a\": 1},\n {\"a\":\n 18446744073709551616}]");
  EXPECT_EQ(error_of([&] { read_json_rows(array); }),
            "data: " + array.string() +
                " line 3 column 2, row 1: the integer 18446744073709551616" + integer);
  const auto columns = rows_file("columns.json", "{\"a\": [-9223372036854775809]}");
  EXPECT_EQ(
      error_of([&] { read_json_rows(columns); }),
      "data: " + columns.string() + " line 1 column 8: the integer -9223372036854775809" + integer);
  const std::string digits(400, '7');
  EXPECT_EQ(error_of([&] { parse_line("{\"a\": " + digits + "}", "f", 3); }),
            "data: f line 3 column 7: the integer " + digits.substr(0, 77) + "..." + integer);
  EXPECT_EQ(error_of([] { parse_line("{\"a\": 1.7976931348623159e308}", "f", 1); }),
            "data: f line 1 column 7: the number 1.7976931348623159e308" + number);
  EXPECT_EQ(error_of([] { parse_line("{\"a\": 1e99999999999}", "f", 1); }),
            "data: f line 1 column 7: the number 1e99999999999" + number);
}

TEST(JsonRows, TheLargestNumbersAndTheSmallestAreKept) {
  const Row row = parse_line(
      R"({"u": 18446744073709551615, "i": -9223372036854775808, "d": 1.7976931348623157e308,
          "s": 5e-324, "z": 1e-400, "text": "1e999"})",
      "f", 1);
  EXPECT_EQ(row.at("u").as_uint64(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(row.at("i").as_int64(), std::numeric_limits<int64_t>::min());
  EXPECT_EQ(row.at("d").as_double(), std::numeric_limits<double>::max());
  EXPECT_EQ(row.at("s").as_double(), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(row.at("z").as_double(), 0.0);
  EXPECT_EQ(row.at("text").as_string(), "1e999");
}

TEST(JsonRows, ColumnsBecomeRowsAndRaggedOnesAreRefused) {
  const Table table =
      read_json_rows(rows_file("columns.json", "{\"a\": [1, 2],\n \"b\": [\"x\", null]}"));
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[1], (Row{{"a", 2}, {"b", nullptr}}));
  const auto ragged = rows_file("ragged.json", "{\"a\": [1],\n \"b\": []}");
  EXPECT_EQ(error_of([&] { read_json_rows(ragged); }),
            "data: " + ragged.string() + ": column 'b' has 0 rows, the first column has 1");
  const auto scalar = rows_file("scalar.json", "{\n\"a\": 1}\n");
  EXPECT_EQ(error_of([&] { read_json_rows(scalar); }),
            "data: " + scalar.string() +
                ": column 'a' is a number; a JSON file holds an array of rows or an "
                "object of columns");
  const auto line = rows_file("line.json", " {\"messages\": [1, 2]}\n");
  EXPECT_EQ(read_json_rows(line).rows.size(), 1u) << "JSONL of one row";
  const auto text = rows_file("text.json", "\"a\"");
  EXPECT_EQ(error_of([&] { read_json_rows(text); }),
            "data: " + text.string() +
                " holds a string; a JSON file holds an array of rows or an object of columns");
  const auto empty = rows_file("empty.json", " \n");
  EXPECT_EQ(error_of([&] { read_json_rows(empty); }),
            "data: " + empty.string() + " is empty, it must hold a JSON array of rows");
}

TEST(JsonRows, AJsonFileMayHoldLinesAndAnEmptyArrayHasNoRows) {
  EXPECT_EQ(read_json_rows(rows_file("lines.json", "{\"a\": 1}\n{\"a\": 2}\n")).rows.size(), 2u);
  EXPECT_EQ(read_json_rows(rows_file("none.json", "[ ]")).rows.size(), 0u);
}

TEST(JsonRows, StreamingInSmallBlocksReadsEveryLineOnce) {
  std::string text = "\xEF\xBB\xBF";
  for (int i = 0; i < 500; ++i)
    text += "{\"i\": " + std::to_string(i) + "}\r\n" + (i % 7 ? "" : "\n");
  const auto file = rows_file("stream.jsonl", text);
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
    const Row row{{"a", value}};
    EXPECT_EQ(parse_line(boost::json::serialize(row), "t", 1).at("a").as_double(), value);
  }
}

// A search of the whole line for each block would take minutes.
TEST(JsonlReader, ALineOfManyBlocksIsSearchedOnce) {
  const std::filesystem::path file =
      rows_file("long.jsonl", "{\"a\": \"" + std::string(1 << 20, 'x') + "\"}\n");
  JsonlReader reader(file, 4);
  Table table;
  const auto begin = std::chrono::steady_clock::now();
  while (reader.next(table)) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(table.rows[0].at("a").as_string().size(), size_t{1} << 20);
}

TEST(JsonlReader, WhatIsNoFileIsNamed) {
  EXPECT_EQ(error_of([] { read_jsonl_rows("/dev/null"); }),
            "data: /dev/null is a device, it must be a regular file");
  EXPECT_EQ(error_of([] { read_json_rows(std::filesystem::temp_directory_path()); }),
            "data: " + std::filesystem::temp_directory_path().string() +
                " is a folder, it must be a regular file");
}

}  // namespace
}  // namespace twinkle::data
