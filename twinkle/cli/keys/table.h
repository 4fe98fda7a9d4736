// A table on standard output.
#pragma once
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

namespace twinkle::cli {

using Row = std::vector<std::string>;

// In columns of these widths, or wider where a cell would touch the next; the last has none.
inline void print_table(const std::vector<Row>& rows, std::vector<size_t> widths) {
  for (const Row& row : rows)
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size() + 1);
  for (const Row& row : rows) {
    std::string line;
    for (size_t i = 0; i < widths.size(); ++i) {
      line += row[i];
      line.append(widths[i] - row[i].size(), ' ');
    }
    std::printf("%s%s\n", line.c_str(), row.back().c_str());
  }
}

}  // namespace twinkle::cli
