#include "twinkle/cli/seed.h"

#include <charconv>

#include "twinkle/base/error.h"

namespace twinkle::cli {

void add_seed(CLI::App& command, uint64_t& seed, const std::string& help) {
  const auto take = [&seed](const std::string& text) {
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, seed);
    require(read.ec == std::errc() && read.ptr == end, Code::kInvalid, "cli: --seed is ", text,
            ", it must be an integer from 0 to ", UINT64_MAX);
  };
  command.add_option_function<std::string>("--seed", take, help)
      ->type_name("UINT")
      ->default_str(std::to_string(seed));
}

}  // namespace twinkle::cli
