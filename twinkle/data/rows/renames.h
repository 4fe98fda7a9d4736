// New names of columns, under which rows are read. Plain values.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "twinkle/data/rows/row.h"

namespace twinkle::data {

using Renames = std::vector<std::pair<std::string, std::string>>;  // a column, its new name

// "question=prompt, answer=completion", without the spaces around names. Error kInvalid: another
// form; a column named twice, or two with one new name.
Renames renames_of(std::string_view text);

// The columns of `file` under their new names. Error kInvalid: a column that is not there, or a new
// name that another column has, with those there.
std::vector<std::string> renamed(const std::vector<std::string>& columns, const Renames& renames,
                                 const std::string& file);

// The same of a table's rows, each of which may lack some of the columns.
void rename(Table& table, const Renames& renames);

}  // namespace twinkle::data
