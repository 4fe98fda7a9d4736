// Options as JSON fields, refused by name.
#pragma once
#include <initializer_list>
#include <limits>
#include <span>
#include <string_view>

#include "twinkle/base/json.h"

namespace twinkle::optim {

// Null and {} are no options. Error kInvalid: not an object, or a key that is not in `known`.
void check_known(const Json& options, std::string_view owner,
                 std::initializer_list<std::string_view> known);

struct Range {
  double low = 0;
  double high = std::numeric_limits<double>::max();
  bool below_high = false;  // high itself is excluded
};

// Error kInvalid: `value` is not within `range`.
void check_range(double value, std::string_view owner, std::string_view key, const Range& range);

// `value` as float32, in which parameters are updated. Error kInvalid: it is not finite there.
float to_float32(double value, std::string_view owner, std::string_view key);

// get_or, then check_range.
double number_in(const Json& options, std::string_view owner, std::string_view key, double fallback,
                 const Range& range = {});

// A list of as many finite numbers as `values` has, into it; as it is where there is none.
void numbers_in(const Json& options, std::string_view owner, std::string_view key,
                std::span<double> values);

}  // namespace twinkle::optim
