#include "twinkle/data/rows/json_rows.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "twinkle/base/encoding/text_fault.h"
#include "twinkle/base/parallel.h"

namespace twinkle::data {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

// Text of a file: a row, or all of it.
struct Piece {
  std::string_view text;
  int64_t row = -1;      // from 0; of a row that has no line of its own
  int64_t line = 1;      // line of the first byte, from 1
  int64_t skipped = 0;   // bytes before it in that line
  bool is_line = false;  // it is a line of a JSONL file
};

// "file line 3", "file line 3, row 1".
std::string where(const std::string& file, const Piece& piece, const std::string& column = "") {
  return file + " line " + std::to_string(piece.line) + column +
         (piece.row < 0 ? "" : ", row " + std::to_string(piece.row));
}

// The same of a byte of the piece, with its column, from 1.
std::string where_at(const std::string& file, Piece piece, size_t at) {
  const std::string_view before = piece.text.substr(0, at);
  const size_t end = before.rfind('\n') + 1;  // npos + 1 is 0
  const size_t column = before.size() - end + (end ? 0 : static_cast<size_t>(piece.skipped)) + 1;
  piece.line += std::count(before.begin(), before.end(), '\n');
  return where(file, piece, " column " + std::to_string(column));
}

// Ends the error of a line that is cut short at `used`: it may be the first of a value of many
// lines.
const char* of_lines(const Piece& piece, size_t used) {
  const size_t end = piece.text.find_last_not_of(kBlank);
  if (piece.row >= 0 || !piece.is_line || used <= end) return "";
  return piece.text[piece.text.find_first_not_of(kBlank)] == '['
             ? "; the file holds a JSON list of many lines: rename it to .json"
             : "; each line of a .jsonl file holds a whole row";
}

// The value at the start of the piece; sets `used` to its length with the white space around it.
Json parse_prefix(const std::string& file, const Piece& piece, size_t& used) {
  std::string cause;
  Json value = parse_json_prefix(piece.text, used, cause, OutOfRange::kRefuse);
  require(cause.empty(), Code::kInvalid, "data: ", where_at(file, piece, used), ": ", cause,
          of_lines(piece, used));
  return value;
}

bool blank(std::string_view text) { return text.find_first_not_of(kBlank) == text.npos; }

Json parse(const std::string& file, const Piece& piece) {
  size_t used = 0;
  Json value = parse_prefix(file, piece, used);
  require(blank(piece.text.substr(used)), Code::kInvalid, "data: ", where_at(file, piece, used),
          ": extra data after the value");
  return value;
}

const char* kind(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_string()) return "a string";
  if (value.is_null()) return "null";
  return value.is_bool() ? "a boolean" : "a number";
}

Row parse_row(const std::string& file, const Piece& piece) {
  Json value = parse(file, piece);
  require(value.is_object(), Code::kInvalid, "data: ", where(file, piece), ": the row is ",
          kind(value), ", it must be an object",
          piece.is_line && value.is_array() ? "; the file of one JSON list is named .json" : "");
  return std::move(value.get_object());
}

// Parses the pieces on all cores and appends them. On an error the table keeps its rows.
void append(Table& table, const std::vector<Piece>& pieces) {
  Rows rows(pieces.size());
  parallel_ranges(std::ssize(pieces), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) rows[i] = parse_row(table.name, pieces[i]);
  });
  table.rows.insert(table.rows.end(), std::move_iterator(rows.begin()),
                    std::move_iterator(rows.end()));
  for (const Piece& piece : pieces) {
    table.places.push_back(piece.row < 0 ? piece.line : piece.row);
    if (piece.row >= 0) table.lines.push_back(piece.line);
  }
}

// Adds the lines of `text` that are not blank; `line` is the number of its first one and of what
// follows after.
std::vector<Piece> split_lines(std::string_view text, int64_t& line) {
  std::vector<Piece> pieces;
  for (; !text.empty(); ++line) {
    const std::string_view row = text.substr(0, text.find('\n'));
    if (!blank(row)) pieces.push_back({.text = row, .line = line, .is_line = true});
    text.remove_prefix(std::min(text.size(), row.size() + 1));
  }
  return pieces;
}

// Cuts the white space before the rows of `whole`, and finds the lines that they begin in.
void place(std::vector<Piece>& pieces, std::string_view whole) {
  int64_t line = 1;
  size_t at = 0, start = 0;  // bytes that are counted, and where the line begins
  for (Piece& piece : pieces) {
    piece.text.remove_prefix(std::min(piece.text.size(), piece.text.find_first_not_of(kBlank)));
    const auto begin = static_cast<size_t>(piece.text.data() - whole.data());
    const std::string_view passed = whole.substr(at, begin - at);
    line += std::count(passed.begin(), passed.end(), '\n');
    if (const size_t end = passed.rfind('\n'); end != passed.npos) start = at + end + 1;
    at = begin;
    piece.line = line;
    piece.skipped = static_cast<int64_t>(begin - start);
  }
}

// The elements of the array that starts at text[0] == '[', by brackets and quotes alone; empty when
// it never closes or has something after it, so that the full parser says what is wrong.
std::vector<Piece> split_array(std::string_view text) {
  std::vector<Piece> pieces;
  int64_t depth = 0;
  size_t begin = 1;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        quoted = false;
      continue;
    }
    if (c == '"')
      quoted = true;
    else if (c == '[' || c == '{')
      ++depth;
    else if (c == ']' || c == '}')
      --depth;
    if (!(depth == 1 && c == ',') && depth != 0) continue;
    pieces.push_back({.text = text.substr(begin, i - begin), .row = std::ssize(pieces)});
    begin = i + 1;
    if (depth == 0) return blank(text.substr(begin)) ? pieces : std::vector<Piece>{};
  }
  return {};
}

Table from_columns(const Row& columns, const std::string& name) {
  Table table{.name = name};
  for (const auto& [key, column] : columns) {
    require(column.is_array(), Code::kInvalid, "data: ", name, ": column '", std::string_view(key),
            "' is ", column.is_object() ? "an object" : kind(column),
            "; a JSON file holds an array of rows or an object of columns");
    const JsonArray& cells = column.get_array();
    if (table.rows.empty() && &column == &columns.begin()->value()) table.rows.resize(cells.size());
    require(cells.size() == table.rows.size(), Code::kInvalid, "data: ", name, ": column '",
            std::string_view(key), "' has ", cells.size(), " rows, the first column has ",
            table.rows.size());
    for (size_t i = 0; i < cells.size(); ++i) table.rows[i][key] = cells[i];
  }
  for (int64_t i = 0; i < std::ssize(table.rows); ++i) table.places.push_back(i);
  return table;
}

const std::filesystem::path& present(const std::filesystem::path& file) {
  require(is_there(file), Code::kNotFound, "data: cannot open ", file.string());
  return file;
}

}  // namespace

Row parse_line(std::string_view text, const std::string& file, int64_t line) {
  return parse_row(file, {.text = text, .line = line, .is_line = true});
}

JsonlReader::JsonlReader(const std::filesystem::path& file, size_t block_bytes)
    : name_(file.string()), file_(present(file), "data"), block_bytes_(block_bytes) {}

bool JsonlReader::next(Table& table) {
  std::string text = std::move(pending_);
  pending_.clear();
  size_t cut = 0;  // one past the last newline
  while (at_ < file_.size() && cut == 0) {
    const size_t had = text.size();
    const size_t count = std::min(block_bytes_, static_cast<size_t>(file_.size() - at_));
    text.resize(had + count);
    file_.read_at(at_, std::as_writable_bytes(std::span<char>(text).subspan(had)));
    at_ += static_cast<int64_t>(count);
    const size_t end = std::string_view(text).substr(had).rfind('\n');  // not before: searched
    if (end != text.npos) cut = had + end + 1;
  }
  if (at_ == file_.size()) cut = text.size();
  if (text.empty()) return false;
  std::string_view whole = std::string_view(text).substr(0, cut);
  if (std::exchange(first_, false) && whole.starts_with(kByteOrderMark)) whole.remove_prefix(3);
  pending_ = text.substr(cut);
  append(table, split_lines(whole, line_));
  return true;
}

Table read_jsonl_rows(const std::filesystem::path& file) {
  Table table{.name = file.string(), .unit = "line"};
  JsonlReader reader(file);
  while (reader.next(table)) {
  }
  return table;
}

Table read_json_rows(const std::filesystem::path& file) {
  const std::string whole = read_file(present(file), "data");
  Piece all{.text = whole};
  if (all.text.starts_with(kByteOrderMark)) all.text.remove_prefix(kByteOrderMark.size());
  Table table{.name = file.string()};
  require(!blank(all.text), Code::kInvalid, "data: ", table.name,
          " is empty, it must hold a JSON array of rows");
  const std::string_view text = all.text.substr(all.text.find_first_not_of(kBlank));
  if (text[0] == '[') {
    std::vector<Piece> pieces = split_array(text);
    if (pieces.size() == 1 && blank(pieces[0].text)) return table;  // []
    if (pieces.empty()) parse(table.name, all);                     // says what is wrong
    place(pieces, all.text);
    append(table, pieces);
    return table;
  }
  size_t used = 0;
  const Json value = parse_prefix(table.name, all, used);
  const bool on_one_line = text.substr(0, text.find_last_not_of(kBlank)).find('\n') == text.npos;
  if (!blank(all.text.substr(used)) || (value.is_object() && on_one_line))
    return read_jsonl_rows(file);
  require(value.is_object(), Code::kInvalid, "data: ", table.name, " holds ", kind(value),
          "; a JSON file holds an array of rows or an object of columns");
  return from_columns(value.get_object(), table.name);
}

}  // namespace twinkle::data
