#include "twinkle/data/rows/json_rows.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "twinkle/base/parallel.h"

namespace twinkle::data {
namespace {

constexpr std::string_view kBlank = " \t\r\n";
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// The value at the start of `text`; sets `used` to its length with the white space around it.
Json parse_prefix(std::string_view text, const std::string& where, size_t& used) {
  boost::json::error_code error;
  Json value = parse_json_prefix(text, used, error);
  require(!error, Code::kInvalid, "data: ", where, " column ", used + 1, ": ", error.message());
  return value;
}

const char* kind(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_string()) return "a string";
  if (value.is_null()) return "null";
  return value.is_bool() ? "a boolean" : "a number";
}

Row parse_row(std::string_view text, const std::string& where) {
  Json value = parse_value(text, where);
  require(value.is_object(), Code::kInvalid, "data: ", where, ": the row is ", kind(value),
          ", it must be an object");
  return std::move(value.get_object());
}

struct Piece {
  std::string_view text;
  int64_t place;
};

// Parses the pieces on all cores and appends them. On an error the table keeps its rows.
void append(Table& table, const std::vector<Piece>& pieces) {
  Rows rows(pieces.size());
  parallel_ranges(std::ssize(pieces), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      rows[i] = parse_row(pieces[i].text,
                          table.name + " " + table.unit + " " + std::to_string(pieces[i].place));
    }
  });
  table.rows.insert(table.rows.end(), std::move_iterator(rows.begin()),
                    std::move_iterator(rows.end()));
  for (const Piece& piece : pieces) table.places.push_back(piece.place);
}

bool blank(std::string_view text) { return text.find_first_not_of(kBlank) == text.npos; }

// Adds the lines of `text` that are not blank; `line` is the number of its first one and of what
// follows after.
std::vector<Piece> split_lines(std::string_view text, int64_t& line) {
  std::vector<Piece> pieces;
  for (; !text.empty(); ++line) {
    const std::string_view row = text.substr(0, text.find('\n'));
    if (!blank(row)) pieces.push_back({row, line});
    text.remove_prefix(std::min(text.size(), row.size() + 1));
  }
  return pieces;
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
    pieces.push_back({text.substr(begin, i - begin), std::ssize(pieces)});
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

std::string read_text(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  require(in.good() && !std::filesystem::is_directory(file), Code::kNotFound, "data: cannot open ",
          file.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

Json parse_value(std::string_view text, const std::string& where) {
  size_t used = 0;
  Json value = parse_prefix(text, where, used);
  require(blank(text.substr(used)), Code::kInvalid, "data: ", where, " column ", used + 1,
          ": extra data after the value");
  return value;
}

JsonlReader::JsonlReader(const std::filesystem::path& file, size_t block_bytes)
    : name_(file.string()), in_(file, std::ios::binary), block_bytes_(block_bytes) {
  require(in_.good() && !std::filesystem::is_directory(file), Code::kNotFound, "data: cannot open ",
          name_);
}

bool JsonlReader::next(Table& table) {
  std::string text = std::move(pending_);
  pending_.clear();
  size_t cut = 0;  // one past the last newline
  while (in_ && cut == 0) {
    const size_t had = text.size();
    text.resize(had + block_bytes_);
    in_.read(text.data() + had, static_cast<std::streamsize>(block_bytes_));
    text.resize(had + static_cast<size_t>(in_.gcount()));
    cut = text.rfind('\n') + 1;  // npos + 1 is 0
  }
  if (!in_) cut = text.size();
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
  const std::string whole = read_text(file);
  std::string_view text = whole;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(3);
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(kBlank)));
  Table table{.name = file.string()};
  require(!text.empty(), Code::kInvalid, "data: ", table.name,
          " is empty, it must hold a JSON array of rows");
  if (text[0] == '[') {
    std::vector<Piece> pieces = split_array(text);
    if (pieces.size() == 1 && blank(pieces[0].text)) return table;  // []
    if (pieces.empty()) parse_value(text, table.name);              // says what is wrong
    append(table, pieces);
    return table;
  }
  size_t used = 0;
  const Json value = parse_prefix(text, table.name, used);
  if (!blank(text.substr(used))) return read_jsonl_rows(file);
  require(value.is_object(), Code::kInvalid, "data: ", table.name, " holds ", kind(value),
          "; a JSON file holds an array of rows or an object of columns");
  return from_columns(value.get_object(), table.name);
}

}  // namespace twinkle::data
