// Refuses options that a loss does not know, by name.
#pragma once
#include <initializer_list>
#include <string_view>

#include "twinkle/base/json.h"

namespace twinkle::loss {

// Null and {} are no options. Error kInvalid: not an object, or a key that is not in `known`.
void check_known(const Json& options, std::string_view loss,
                 std::initializer_list<std::string_view> known);

}  // namespace twinkle::loss
