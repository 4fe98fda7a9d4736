#include "twinkle/data/rows/csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "twinkle/base/encoding/text_fault.h"
#include "twinkle/base/file.h"
#include "twinkle/base/parallel.h"
#include "twinkle/data/rows/text_rows.h"

namespace twinkle::data {
namespace {

struct Cell {
  std::string text;
  bool quoted = false;
};

struct Record {
  std::vector<Cell> cells;
  int64_t line = 0;  // line of its first character
};

// By the header, which begins `text` after blank lines.
char separator_of(std::string_view text, const std::string& name) {
  const std::filesystem::path file(name);
  const std::string extension = file.extension().string();
  if (extension == ".tsv" || extension == ".TSV") return '\t';
  std::array<int64_t, 256> counts{};
  bool quoted = false;
  text.remove_prefix(std::min(text.size(), text.find_first_not_of("\r\n")));
  for (const char c : text) {
    if (c == '\n' && !quoted) break;
    if (c == '"') quoted = !quoted;
    if (!quoted) ++counts[static_cast<unsigned char>(c)];
  }
  char best = ',';
  for (const char c : {';', '\t'})
    if (counts[static_cast<unsigned char>(c)] > counts[static_cast<unsigned char>(best)]) best = c;
  return best;
}

class Scanner {
 public:
  Scanner(std::string_view text, const std::string& name, char separator)
      : rest_(text), name_(name), separator_(separator), ends_({separator, '\n'}) {}

  // The next record that is not a blank line.
  std::optional<Record> next() {
    while (!rest_.empty() && end_of_line()) {
    }
    if (rest_.empty()) return std::nullopt;
    Record record{.line = line_};
    do record.cells.push_back(cell());
    while (take(separator_));
    require(end_of_line() || rest_.empty(), Code::kInvalid, "data: ", name_, " line ", line_,
            ": text after a closing quote; inside a quoted cell a quote is written twice");
    return record;
  }

 private:
  bool take(char c) {
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool end_of_line() {
    if (rest_.starts_with("\r\n"))
      rest_.remove_prefix(2);
    else if (rest_.starts_with('\n'))
      rest_.remove_prefix(1);
    else
      return false;
    ++line_;
    return true;
  }

  Cell cell() {
    if (take('"')) return {.text = quoted(), .quoted = true};
    size_t size = std::min(rest_.size(), rest_.find_first_of(ends_));
    const bool crlf =
        size > 0 && size < rest_.size() && rest_[size] == '\n' && rest_[size - 1] == '\r';
    if (crlf) --size;
    std::string text(rest_.substr(0, size));
    require(text.find('"') == text.npos, Code::kInvalid, "data: ", name_, " line ", line_,
            ": a quote inside a cell that is not quoted; quote the cell and write the quote twice");
    rest_.remove_prefix(size);
    return {.text = std::move(text)};
  }

  std::string quoted() {
    const int64_t opened = line_;
    std::string text;
    while (true) {
      const size_t size = rest_.find('"');
      require(size != rest_.npos, Code::kInvalid, "data: ", name_, " line ", opened,
              ": a quote is opened and never closed");
      line_ += std::count(rest_.begin(), rest_.begin() + static_cast<ptrdiff_t>(size), '\n');
      text += rest_.substr(0, size);
      rest_.remove_prefix(size + 1);
      if (!take('"')) return text;
      text += '"';
    }
  }

  std::string_view rest_;
  const std::string& name_;
  const char separator_;
  const std::string ends_;  // ends of a cell that is not quoted
  int64_t line_ = 1;
};

enum class Kind { kInteger, kNumber, kBoolean, kString };

// A number as JSON writes it (no "007", "+1", "1.", "nan"), so that turning it into a number loses
// nothing.
std::optional<Json> number(std::string_view cell) {
  const std::string_view digits = cell.substr(cell.starts_with('-') ? 1 : 0);
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (digits.empty() || !is_digit(digits[0]) || !is_digit(digits.back())) return std::nullopt;
  if (digits.size() > 1 && digits[0] == '0' && is_digit(digits[1])) return std::nullopt;
  const auto end = cell.data() + cell.size();
  int64_t integer = 0;
  if (const auto r = std::from_chars(cell.data(), end, integer);
      r.ec == std::errc{} && r.ptr == end) {
    return Json(integer);
  }
  if (digits.find_first_not_of("0123456789") == digits.npos) return std::nullopt;  // beyond int64
  double real = 0;
  const auto r = std::from_chars(cell.data(), end, real);
  if (r.ec != std::errc{} || r.ptr != end) return std::nullopt;
  return Json(real);
}

bool is_true(std::string_view cell) { return cell == "true" || cell == "True"; }
bool is_false(std::string_view cell) { return cell == "false" || cell == "False"; }

// Columns that the preprocessors read as text, whatever is in their cells.
bool is_text(std::string_view column) {
  static constexpr std::array<std::string_view, 18> kText = {
      "prompt",      "completion", "response", "query",   "question",  "answer",
      "instruction", "input",      "output",   "system",  "problem",   "solution",
      "chosen",      "rejected",   "text",     "content", "answer_zh", "answer_en"};
  return std::ranges::find(kText, column) != kText.end();
}

Kind kind_of(const std::string& cell) {
  if (is_true(cell) || is_false(cell)) return Kind::kBoolean;
  const auto value = number(cell);
  if (!value) return Kind::kString;
  return value->is_int64() ? Kind::kInteger : Kind::kNumber;
}

Kind column_kind(const std::vector<Record>& records, size_t column) {
  std::optional<Kind> kind;
  for (const Record& record : records) {
    if (record.cells[column].quoted) return Kind::kString;
    const Kind cell = kind_of(record.cells[column].text);
    const bool numbers = kind && *kind <= Kind::kNumber && cell <= Kind::kNumber;
    if (!kind)
      kind = cell;
    else if (numbers)
      kind = std::max(*kind, cell);
    else if (*kind != cell)
      return Kind::kString;
    if (kind == Kind::kString) return Kind::kString;
  }
  return kind.value_or(Kind::kString);
}

Json value_of(const std::string& cell, Kind kind) {
  if (kind == Kind::kBoolean) return is_true(cell);
  if (kind == Kind::kString) return Json(cell);
  const Json value = *number(cell);
  if (kind == Kind::kNumber && value.is_int64()) return static_cast<double>(value.get_int64());
  return value;
}

std::vector<std::string> column_names(const Record& header, const std::string& name) {
  std::set<std::string> seen;
  std::vector<std::string> names;
  for (const Cell& column : header.cells) {
    require(seen.insert(column.text).second, Code::kInvalid, "data: ", name, " line ", header.line,
            ": two columns are named '", column.text, "'");
    names.push_back(column.text);
  }
  return names;
}

}  // namespace

Table parse_csv(std::string_view text, const std::string& name, const Renames& renames) {
  text = without_mark(text);
  refuse_no_text(text, name);
  const char separator = separator_of(text, name);
  Scanner scanner(text, name, separator);
  const auto header = scanner.next();
  require(header.has_value(), Code::kInvalid, "data: ", name,
          " is empty, its first line must name the columns");
  const auto columns = renamed(column_names(*header, name), renames, name);
  std::vector<Record> records;
  while (auto record = scanner.next()) {
    const size_t count = record->cells.size();
    require(count == columns.size(), Code::kInvalid, "data: ", name, " line ", record->line, ": ",
            count, count == 1 ? " cell" : " cells", ", the header names ", columns.size(),
            count > columns.size() ? "; quote the cell that has a separator in it: \"a, b\""
                                   : "; quote a cell that has a line's end in it, and separate "
                                     "empty cells, too");
    records.push_back(std::move(*record));
  }
  std::vector<Kind> kinds(columns.size());
  parallel_ranges(std::ssize(columns), 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c)
      kinds[c] = is_text(columns[c]) ? Kind::kString : column_kind(records, c);
  });
  Table table{.name = name, .unit = "line", .rows = Rows(records.size())};
  if (separator != ',') table.note = separator == ';' ? "separated by ';'" : "separated by tabs";
  parallel_ranges(std::ssize(records), 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (size_t c = 0; c < records[i].cells.size(); ++c) {
        table.rows[i][columns[c]] = value_of(records[i].cells[c].text, kinds[c]);
      }
    }
  });
  for (const Record& record : records) table.places.push_back(record.line);
  return table;
}

Table read_csv_rows(const std::filesystem::path& file, const Renames& renames) {
  require(is_there(file), Code::kNotFound, "data: cannot open ", file.string());
  return parse_csv(read_file(file, "data"), file.string(), renames);
}

}  // namespace twinkle::data
