#include "twinkle/data/rows/renames.h"

#include <algorithm>
#include <set>

namespace twinkle::data {
namespace {

std::string listed(const std::vector<std::string>& columns) {
  constexpr size_t kMaxColumns = 20;
  std::string out;
  for (size_t i = 0; i < std::min(columns.size(), kMaxColumns); ++i)
    out += (i == 0 ? "" : ", ") + columns[i].substr(0, 80);
  if (columns.size() > kMaxColumns) out += ", ...";
  return out.empty() ? "none" : out;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(' ');
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

const std::string* new_name(const Renames& renames, std::string_view column) {
  for (const auto& [from, to] : renames)
    if (from == column) return &to;
  return nullptr;
}

}  // namespace

Renames renames_of(std::string_view text) {
  Renames out;
  std::set<std::string> from, to;
  for (std::string_view rest = text; !text.empty();) {
    const std::string_view pair = rest.substr(0, rest.find(','));
    const size_t mark = std::min(pair.find('='), pair.size());
    const std::string_view column = trimmed(pair.substr(0, mark)),
                           name = trimmed(pair.substr(std::min(mark + 1, pair.size())));
    require(!column.empty() && !name.empty(), Code::kInvalid, "data: columns is '", text,
            "', it must be COLUMN=NAME,COLUMN=NAME, such as ", "question=prompt,answer=completion");
    out.emplace_back(column, name);
    require(from.insert(out.back().first).second, Code::kInvalid, "data: columns is '", text,
            "', which gives '", out.back().first, "' two names; give it one");
    require(to.insert(out.back().second).second, Code::kInvalid, "data: columns is '", text,
            "', which gives two columns the name '", out.back().second, "'; give it to one");
    if (pair.size() == rest.size()) break;
    rest.remove_prefix(pair.size() + 1);
  }
  return out;
}

std::vector<std::string> renamed(const std::vector<std::string>& columns, const Renames& renames,
                                 const std::string& file) {
  std::vector<std::string> out;
  for (const std::string& column : columns) {
    const std::string* name = new_name(renames, column);
    out.push_back(name ? *name : column);
  }
  for (const auto& [from, to] : renames) {
    require(std::ranges::count(columns, from) > 0, Code::kInvalid, "data: ", file,
            " has no column '", from, "' to be named '", to, "'; there are ", listed(columns));
    require(std::ranges::count(out, to) == 1, Code::kInvalid, "data: ", file, " has a column '", to,
            "' already, so '", from, "' cannot be named so; name that one otherwise, too: ", to,
            "=NAME");
  }
  return out;
}

void rename(Table& table, const Renames& renames) {
  if (renames.empty()) return;
  std::vector<std::string> columns;
  std::set<std::string, std::less<>> seen;
  for (const Row& row : table.rows)
    for (const auto& field : row)
      if (!seen.contains(std::string_view(field.key())))
        columns.push_back(*seen.insert(std::string(field.key())).first);
  renamed(columns, renames, table.name);
  for (Row& row : table.rows) {
    Row out;
    for (auto& field : row) {
      const std::string* name = new_name(renames, field.key());
      out.emplace(name ? std::string_view(*name) : std::string_view(field.key()),
                  std::move(field.value()));
    }
    row = std::move(out);
  }
}

}  // namespace twinkle::data
