// Options of losses: those that a loss does not know are refused by name.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle::loss {

// Null and {} are no options. Error kInvalid: not an object, or a key that is not in `known`.
void check_known(const Json& options, std::string_view loss,
                 const std::vector<std::string_view>& known);

// One of `known`, the first where it is not given. Error kInvalid: another text.
std::string choice(const Json& options, std::string_view loss, std::string_view name,
                   const std::vector<std::string_view>& known);

// A Loss's check by what parses its options.
template <auto parse>
void checked(const Json& options) {
  parse(options);
}

}  // namespace twinkle::loss
