#include "twinkle/data/rows/text_rows.h"

#include <gtest/gtest.h>

#include <fstream>

#include "twinkle/base/error_for_test.h"

namespace twinkle::data {
namespace {

std::filesystem::path text_file(const std::string& name, const std::string& text) {
  const auto file = std::filesystem::path(testing::TempDir()) / ("text_rows_test_" + name);
  std::ofstream(file, std::ios::binary) << text;
  return file;
}

TEST(TextRows, EveryLineIsARow) {
  const Table table = read_text_rows(text_file("a.txt",
                                               "\xEF\xBB\xBF"
                                               "a \"b\"\r\n\nc"));
  EXPECT_EQ(table.rows, (Rows{{{"text", "a \"b\""}}, {{"text", ""}}, {{"text", "c"}}}));
  EXPECT_EQ(table.places, (std::vector<int64_t>{1, 2, 3}));
  EXPECT_TRUE(read_text_rows(text_file("b.txt", "")).rows.empty());
}

TEST(TextRows, WhatIsNoTextIsNamedWithItsLine) {
  const auto latin = text_file("latin.txt", "a\nxcaf\xE9\n");
  EXPECT_EQ(error_of([&] { read_text_rows(latin); }),
            "data: " + latin.string() + " line 2, byte 5: invalid UTF-8; save the file as UTF-8");
  EXPECT_EQ(error_of([] { read_text_rows("/nowhere.txt"); }), "data: cannot open /nowhere.txt");
}

}  // namespace
}  // namespace twinkle::data
