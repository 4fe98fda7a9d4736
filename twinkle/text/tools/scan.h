// Scanning for the formats of tool calls: white space, words, and parts between marks.
// Characters are Unicode's, as in Python's str.strip and regular expressions.
#pragma once
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace twinkle::text {

// Without the white space at the beginning, at the end, and at both.
std::string_view left_stripped(std::string_view text);
std::string_view right_stripped(std::string_view text);
std::string_view stripped(std::string_view text);

// Without the spaces and tabs at the beginning.
std::string_view without_blanks(std::string_view text);

// The length in bytes of the letters, digits and underscores, of any script, at the text's end.
size_t word_at_end(std::string_view text);
// The same at its beginning, of these and of the characters in `more`, which are ASCII.
size_t word_at_begin(std::string_view text, std::string_view more);

// A mark that opens a block, [begin, end), what it names, and the mark that closes it.
struct Opening {
  size_t begin = 0, end = 0;
  std::string_view name;
  std::string close;
};

struct Block {
  size_t begin = 0, end = 0;  // with its marks
  std::string_view name, inside;
};

// Begins of the last of each closing mark of a text. By them a mark that is missing is not looked
// for again behind each opening one, which would take time of the square of the text's length.
using LastMarks = std::unordered_map<std::string, size_t>;
LastMarks last_marks(std::string_view text, std::initializer_list<std::string_view> marks);

// The blocks from each opening mark to the next of its closing ones, none inside another.
// next(at): the first opening mark of the text that begins at `at` or behind it.
std::vector<Block> blocks(std::string_view text, const LastMarks& last,
                          const std::function<std::optional<Opening>(size_t at)>& next);

// The JSON text of an object of fields. Of two with one name the later counts, in the place of the
// earlier.
class FieldsText {
 public:
  void set_json(std::string_view name, std::string_view json);
  void set_text(std::string_view name, std::string_view text);

  bool empty() const { return fields_.empty(); }
  std::string str() const;  // {"a": 1, "b": "text"}

 private:
  struct Field {
    std::string name, json;
  };
  std::vector<Field> fields_;
  std::unordered_map<std::string, size_t> places_;
};

}  // namespace twinkle::text
