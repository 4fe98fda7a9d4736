// A data row is a JSON object; a table is rows with the place in the file that each came from, for
// errors. Plain values.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle::data {

using Row = JsonObject;
using Rows = std::vector<Row>;

struct Table {
  std::string name;          // the file, or "memory"
  std::string unit = "row";  // the unit of `places`: "line" (from 1) or "row" (from 0)
  Rows rows;
  std::vector<int64_t> places;  // one per row
  std::vector<int64_t> lines;   // that rows begin in, from 1, where `places` does not count these;
                                // empty: not known
  std::string note = {};  // how the file was read, where that was a choice: "separated by ';'"
};

}  // namespace twinkle::data
