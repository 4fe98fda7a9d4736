#include "twinkle/data/rows/renames.h"

#include <gtest/gtest.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/data/rows/csv.h"

namespace twinkle::data {
namespace {

TEST(Renames, ReadAsTheyAreTyped) {
  EXPECT_EQ(renames_of("a b=prompt,c=completion"),
            (Renames{{"a b", "prompt"}, {"c", "completion"}}));
  EXPECT_EQ(renames_of("a b = prompt, c=completion "), renames_of("a b=prompt,c=completion"));
  EXPECT_EQ(renames_of(""), Renames());
  for (const char* wrong : {"a", "a=", "=b", "a= ", "a=b,", "a=b,,c=d"})
    EXPECT_EQ(twinkle::error_of([&] { renames_of(wrong); }),
              "data: columns is '" + std::string(wrong) +
                  "', it must be COLUMN=NAME,COLUMN=NAME, such as "
                  "question=prompt,answer=completion");
  EXPECT_EQ(twinkle::error_of([] { renames_of("a=b,a=c"); }),
            "data: columns is 'a=b,a=c', which gives 'a' two names; give it one");
  EXPECT_EQ(twinkle::error_of([] { renames_of("a=c,b=c"); }),
            "data: columns is 'a=c,b=c', which gives two columns the name 'c'; give it to one");
}

TEST(Renames, RowsKeepTheirOtherColumnsAndTheirOrder) {
  Table table{.name = "f", .rows = {{{"q", 1}, {"id", 2}, {"a", 3}}, {{"a", 4}}}};
  rename(table, {{"q", "a"}, {"a", "q"}});
  EXPECT_EQ(table.rows[0], (Row{{"a", 1}, {"id", 2}, {"q", 3}}));
  EXPECT_EQ(table.rows[1], (Row{{"q", 4}}));
}

TEST(Renames, AColumnThatIsNotThereOrANameThatIsTakenIsRefusedWithThoseThere) {
  const auto error = [](const Renames& renames) {
    Table table{.name = "f", .rows = {{{"Q", 1}}, {{"A", 3}, {"Q", 1}}}};
    return twinkle::error_of([&] { rename(table, renames); });
  };
  EXPECT_EQ(error({{"q", "prompt"}}),
            "data: f has no column 'q' to be named 'prompt'; there are Q, A");
  EXPECT_EQ(error({{"Q", "A"}}),
            "data: f has a column 'A' already, so 'Q' cannot be named so; name that one "
            "otherwise, too: A=NAME");
}

TEST(Renames, ACellOfARenamedColumnOfTextIsTakenAsWritten) {
  const Table table = parse_csv("Question,Answer\n007,1e5\n", "f",
                                {{"Question", "prompt"}, {"Answer", "completion"}});
  EXPECT_EQ(table.rows[0], (Row{{"prompt", "007"}, {"completion", "1e5"}}));
  EXPECT_EQ(twinkle::error_of([] { parse_csv("a\n", "f", {{"b", "c"}}); }),
            "data: f has no column 'b' to be named 'c'; there are a");
}

}  // namespace
}  // namespace twinkle::data
