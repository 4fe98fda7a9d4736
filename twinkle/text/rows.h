// Work on the rows of a batch on all cores: order kept, the failure of the lowest row reported with
// its index and cause.
#pragma once
#include <cstddef>
#include <functional>
#include <string_view>

namespace twinkle::text {

// Calls work(0) .. work(num_rows - 1), each at most once, from several threads at once; returns
// when all are done. The Error of the lowest failing row is thrown as "text: row 17: cause" with
// the cause's code.
void for_each_row(size_t num_rows, const std::function<void(size_t row)>& work);

// An error's text without the folder that it begins with: as the cause that another error names.
std::string_view without_folder(std::string_view text);

}  // namespace twinkle::text
