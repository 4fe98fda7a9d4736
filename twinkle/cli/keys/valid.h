// How many keys of a state open something.
#pragma once
#include <algorithm>
#include <cstdint>
#include <ctime>
#include <vector>

#include "twinkle/store/keys/keys.h"

namespace twinkle::cli {

// Neither revoked nor at their end now.
inline int64_t num_valid(const std::vector<store::Key>& keys) {
  return std::ranges::count_if(keys, [now = std::time(nullptr)](const store::Key& key) {
    return key.revoked == 0 && (key.expires == 0 || key.expires > now);
  });
}

}  // namespace twinkle::cli
