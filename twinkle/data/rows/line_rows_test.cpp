#include "twinkle/data/rows/line_rows.h"

#include <gtest/gtest.h>

#include "twinkle/data/rows/json_rows.h"
#include "twinkle/data/rows/text_rows.h"
#include "twinkle/io/scratch_dir_for_test.h"

namespace twinkle::data {
namespace {

TEST(LineRows, AreThoseOfTheWholeFileInBlocksOfAnySize) {
  const ScratchDir dir;
  for (const char* end : {"", "\n", "\n\n", "\r\n"}) {
    write_text(
        dir / "a.jsonl",
        "\xEF\xBB\xBF{\"a\": 1}\n\n {\"a\": [2, \"\xC3\xA9\"]}\r\n{\"a\": 3}" + std::string(end));
    write_text(dir / "a.TXT", "\xEF\xBB\xBF\n one \r\n\nthree \"x\"" + std::string(end));
    const Table lines = read_jsonl_rows(dir / "a.jsonl"), text = read_text_rows(dir / "a.TXT");
    for (const Table& whole : {lines, text})
      for (const size_t block_bytes : {1, 3, 7, 1000}) {
        LineRows rows(whole.name, block_bytes);
        for (size_t i = 0; i < whole.rows.size(); ++i) {
          EXPECT_EQ(rows.next(), whole.rows[i]);
          EXPECT_EQ(rows.where(), whole.name + " line " + std::to_string(whole.places[i]));
        }
        EXPECT_EQ(rows.next(), std::nullopt);
      }
  }
  write_text(dir / "empty.txt", "");
  EXPECT_EQ(LineRows(dir / "empty.txt").next(), std::nullopt);
}

TEST(LineRows, ComeBeforeABadOneThatIsNamedInTheWordsOfTheWholeFile) {
  const ScratchDir dir;
  write_text(dir / "a.jsonl", "{\"a\": 1}\n\n{\"a\": \n{\"a\": 2}\n");
  write_text(dir / "a.txt", "ok\ncaf\xE9\n");
  write_text(dir / "late_mark.txt", "ok\n\xFF\xFE\n");
  write_text(dir / "nul.txt", std::string("ok\nabcdefg\0b\n", 13));
  write_text(dir / "pointer.txt", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n");
  for (const char* name : {"a.jsonl", "a.txt", "late_mark.txt", "nul.txt"}) {
    LineRows rows(dir / name);
    EXPECT_TRUE(rows.next().has_value());
    const std::string whole = error_of([&] {
      name == std::string("a.jsonl") ? read_jsonl_rows(dir / name) : read_text_rows(dir / name);
    });
    EXPECT_EQ(error_of([&] { rows.next(); }), whole);
  }
  EXPECT_EQ(error_of([&] { LineRows(dir / "pointer.txt").next(); }),
            error_of([&] { read_text_rows(dir / "pointer.txt"); }));
  EXPECT_EQ(error_of([&] { LineRows rows(dir.path()); }),
            "data: " + dir.path().string() + " is a folder, it must be a regular file");
}

}  // namespace
}  // namespace twinkle::data
