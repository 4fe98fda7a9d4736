// The forms of rows without messages that are known by their columns. The preprocessors of `data`
// make messages of such rows; this knows their names only, and no values.
#pragma once
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace twinkle::text {

struct Form {
  std::array<std::string_view, 2> columns;  // twice the same: it is one column
  std::string_view preprocessor;

  std::string listed() const;  // "prompt, completion"
};

// Those of the rows that have columns for which `has` returns true. Of a pair, chosen and rejected,
// the column conversations is the prompt, so that it is no form of its own.
std::vector<Form> forms_of(const std::function<bool(std::string_view)>& has);

// Ends the error about a row without messages that has these fields: "; the row has instruction,
// output: ", and the preprocessor of data that makes messages of them, or what else to do. Of a
// message in a row's place it says so. Empty without fields.
std::string in_place_of_messages(const std::vector<std::string>& fields);

}  // namespace twinkle::text
