// Data files. JSON files are lines, an array or columns.
#include "tests/fuzz/fuzz.h"
#include "twinkle/data/rows/csv.h"
#include "twinkle/data/rows/json_rows.h"

namespace twinkle::fuzz {

Reader jsonl() {
  return {.name = "jsonl",
          .corpus = {"{\"a\": 1}\n\n{\"a\": \"x\", \"b\": [1.5, null]}\n",
                     "\xEF\xBB\xBF{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\r\n",
                     R"([{"a": 1, "b": "x,]\"}"}, {"a": 2}])", R"({"a": [1, 2], "b": ["x", null]})",
                     "{\"a\": 12345678901234567890123}\n", std::string(100000, '['), "[ ]"},
          .words = {"{\"a\":", "}\n{", "]", "[", ",", "\\\"", "\n\n", "\r", "\xff", "1e999"},
          .read = [](const std::string& bytes) {
            const auto file = file_of(bytes, "x.json");
            try {
              data::read_json_rows(file);
            } catch (const Error&) {
              // Lines are to be read, too.
            }
            data::Table table;
            data::JsonlReader lines(file, 64);  // many blocks
            while (lines.next(table)) {
            }
          }};
}

Reader csv() {
  return {.name = "csv",
          .corpus = {"a,b\n1,x\n2.5,\"y \"\"z\"\"\n,\"\n", "\xEF\xBB\xBFq,r\r\ntrue,False\r\n",
                     "a\n9223372036854775808\n-0\n007\n1e999\n", "a,b\n\"1,\n2\",3\n"},
          .words = {"\"\"", ",\"", "\"\n", "\r\n", ",,,", "\xff", "\xed\xa0\x80", "true"},
          .read = [](const std::string& bytes) { data::read_csv_rows(file_of(bytes, "x.csv")); }};
}

}  // namespace twinkle::fuzz
