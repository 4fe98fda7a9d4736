#include "twinkle/optim/options.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace twinkle::optim {

void check_known(const Json& options, std::string_view owner,
                 std::initializer_list<std::string_view> known) {
  if (options.is_null()) return;
  require(options.is_object(), Code::kInvalid, "optim: options of ", owner,
          " must be a JSON object");
  for (const auto& [key, value] : options.get_object()) {
    if (std::find(known.begin(), known.end(), std::string_view(key)) != known.end()) continue;
    std::string names;
    for (const std::string_view name : known)
      names += (names.empty() ? "" : ", ") + std::string(name);
    fail(Code::kInvalid, "optim: ", owner, " has no option '", std::string_view(key), "', it has ",
         names.empty() ? "none" : names);
  }
}

void check_range(double value, std::string_view owner, std::string_view key, const Range& range) {
  const bool ok =
      value >= range.low && (range.below_high ? value < range.high : value <= range.high);
  if (ok) return;
  if (range.high == std::numeric_limits<double>::max())
    fail(Code::kInvalid, "optim: ", key, " of ", owner, " is ", value, ", it must be at least ",
         range.low, " and finite");
  fail(Code::kInvalid, "optim: ", key, " of ", owner, " is ", value, ", it must be at least ",
       range.low, range.below_high ? " and below " : " and at most ", range.high);
}

float to_float32(double value, std::string_view owner, std::string_view key) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  require(std::abs(value) <= kLargest, Code::kInvalid, "optim: ", key, " of ", owner, " is ", value,
          ", it must be finite in float32, at most ", kLargest);
  return static_cast<float>(value);
}

double number_in(const Json& options, std::string_view owner, std::string_view key, double fallback,
                 const Range& range) {
  const auto value = get_or<double>(options, key, fallback);
  check_range(value, owner, key, range);
  return value;
}

void numbers_in(const Json& options, std::string_view owner, std::string_view key,
                std::span<double> values) {
  const Json* found = find(options, key);
  if (!found) return;
  const bool is_list = found->is_array() && found->get_array().size() == values.size() &&
                       std::ranges::all_of(found->get_array(), [](const Json& one) {
                         return one.is_number() && std::isfinite(one.to_number<double>());
                       });
  require(is_list, Code::kInvalid, "optim: ", key, " of ", owner, " is ",
          boost::json::serialize(*found), ", it must be ", values.size() == 2 ? "two" : "three",
          " numbers");
  for (size_t i = 0; i < values.size(); ++i) values[i] = found->get_array()[i].to_number<double>();
}

}  // namespace twinkle::optim
