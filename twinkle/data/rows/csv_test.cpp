#include "twinkle/data/rows/csv.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "twinkle/base/error_for_test.h"
#include "twinkle/data/dataset.h"

namespace twinkle::data {
namespace {

std::string csv_error(const std::string& text) {
  return twinkle::error_of([&] { parse_csv(text, "f.csv"); });
}

TEST(Csv, ReadsQuotesNewlinesAndBothLineEndings) {
  const Table table = parse_csv(
      "\xEF\xBB\xBF"
      "a,b\r\n\"x\ny\",\"say \"\"hi\"\", ok\"\r\n\nz,\n",
      "f.csv");
  ASSERT_EQ(table.rows.size(), 2u);
  EXPECT_EQ(table.rows[0], (Row{{"a", "x\ny"}, {"b", "say \"hi\", ok"}}));
  EXPECT_EQ(table.rows[1], (Row{{"a", "z"}, {"b", ""}}));  // an empty cell is the empty string
  EXPECT_EQ(table.places, (std::vector<int64_t>{2, 5}));
}

TEST(Csv, TypesAColumnOnlyWhereNothingIsLost) {
  const Table table =
      parse_csv("i,d,b,id,e,big\n1,1,true,007,1,99999999999999999999\n-2,2.5e1,False,8,,1\n", "f");
  EXPECT_EQ(table.rows[0], (Row{{"i", 1},
                                {"d", 1.0},
                                {"b", true},
                                {"id", "007"},
                                {"e", "1"},
                                {"big", "99999999999999999999"}}));
  EXPECT_EQ(table.rows[1],
            (Row{{"i", -2}, {"d", 25.0}, {"b", false}, {"id", "8"}, {"e", ""}, {"big", "1"}}));
}

TEST(Csv, ColumnsOfTextTakeTheCellAsWritten) {
  const Table table = parse_csv("prompt,completion,n,quoted\n4,True,4,\"1e5\"\n007,1e5,5,2\n", "f");
  EXPECT_EQ(table.rows[0],
            (Row{{"prompt", "4"}, {"completion", "True"}, {"n", 4}, {"quoted", "1e5"}}));
  EXPECT_EQ(table.rows[1],
            (Row{{"prompt", "007"}, {"completion", "1e5"}, {"n", 5}, {"quoted", "2"}}));
}

TEST(Csv, ErrorsNameTheLineAndTheCause) {
  EXPECT_EQ(csv_error("a\n\"x\ny\"\nz,1\n"),
            "data: f.csv line 4: 2 cells, the header names 1; quote the cell that has a separator "
            "in it: \"a, b\"");
  EXPECT_EQ(csv_error("a,n\nx,1\ny\nz,2\n"),
            "data: f.csv line 3: 1 cell, the header names 2; quote a cell that has a line's end "
            "in it, and separate empty cells, too");
  EXPECT_EQ(csv_error("a\nx\"y\n"),
            "data: f.csv line 2: a quote inside a cell that is not quoted; quote the "
            "cell and write the quote twice");
  EXPECT_EQ(csv_error("a\n\"x\"y\n"),
            "data: f.csv line 2: text after a closing quote; inside a quoted cell a "
            "quote is written twice");
  EXPECT_EQ(csv_error("a\nz\n\"x\ny\n"), "data: f.csv line 3: a quote is opened and never closed");
  EXPECT_EQ(csv_error("a,a\n"), "data: f.csv line 1: two columns are named 'a'");
  EXPECT_EQ(csv_error("a\nx\n\xC3(\n"),
            "data: f.csv line 3, byte 1: invalid UTF-8; save the file as UTF-8");
  EXPECT_EQ(csv_error(std::string("a\nx\nyz\0\n", 8)),
            "data: f.csv line 3, byte 3: a NUL character; remove it");
  EXPECT_EQ(csv_error("\n\n"), "data: f.csv is empty, its first line must name the columns");
  EXPECT_THROW(read_csv_rows("/nowhere.csv"), Error);
}

TEST(Csv, FindsTheSeparatorInTheHeader) {
  const Row row = {{"prompt", "a, b"}, {"completion", "c\td"}};
  const Table semicolons = parse_csv(
      "\xEF\xBB\xBF"
      "prompt;completion\r\na, b;\"c\td\"\r\n",
      "f.csv");
  EXPECT_EQ(semicolons.rows.at(0), row);
  EXPECT_EQ(semicolons.note, "separated by ';'");
  const Table quoted = parse_csv("\"prompt\";\"completion, if any\"\n1;2\n", "f.csv");
  EXPECT_EQ(quoted.rows.at(0), (Row{{"prompt", "1"}, {"completion, if any", 2}}));
  const Table tabs = parse_csv("\nprompt\tcompletion\na, b\t\"c\td\"\n", "f.csv");
  EXPECT_EQ(tabs.rows.at(0), row);
  EXPECT_EQ(tabs.note, "separated by tabs");
  const Table named = parse_csv("prompt, short\tn\na\t7\n", "f.tsv");
  EXPECT_EQ(named.rows.at(0), (Row{{"prompt, short", "a"}, {"n", 7}}));
  const Table commas = parse_csv("prompt,n;m\na;b,7\n", "f.csv");
  EXPECT_EQ(commas.rows.at(0), (Row{{"prompt", "a;b"}, {"n;m", 7}}));
  EXPECT_EQ(commas.note, "");
}

TEST(Csv, RefusesMalformedUtf8AndTakesTheRest) {
  for (const char* bad : {"\x80", "\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80",
                          "\xF5", "\xE2\x82"}) {
    EXPECT_NE(csv_error(std::string("a\n") + bad), "no error");
  }
  EXPECT_EQ(csv_error("a\n\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\n"), "no error");
}

}  // namespace
}  // namespace twinkle::data
