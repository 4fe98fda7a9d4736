#include "twinkle/text/rows.h"

#include <string_view>

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
        constexpr std::string_view kFolder = "text: ";
        std::string_view cause = error.what();
        if (cause.starts_with(kFolder)) cause.remove_prefix(kFolder.size());
        fail(error.code, "text: row ", row, ": ", cause);
      }
    }
  });
}

}  // namespace twinkle::text
