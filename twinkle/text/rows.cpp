#include "twinkle/text/rows.h"

#include "twinkle/base/error.h"
#include "twinkle/base/parallel.h"

namespace twinkle::text {

void for_each_row(size_t num_rows, const std::function<void(size_t)>& work) {
  parallel_ranges(static_cast<int64_t>(num_rows), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      Interrupt::check();
      try {
        work(row);
      } catch (const Error& error) {  // `work` knows the cause and only this loop knows the row
        fail(error.code, "text: row ", row, ": ", without_folder(error.what()));
      }
    }
  });
}

std::string_view without_folder(std::string_view text) {
  const size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz");
  return end != text.npos && end > 0 && text.substr(end, 2) == ": " ? text.substr(end + 2) : text;
}

}  // namespace twinkle::text
