// Refuses options that a loss does not know, by name.
#pragma once
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle::loss {

// Null and {} are no options. Error kInvalid: not an object, or a key that is not in `known`.
void check_known(const Json& options, std::string_view loss,
                 const std::vector<std::string_view>& known);

}  // namespace twinkle::loss
