// Fault points: named places at which a test's program ends itself, to show that what was
// acknowledged outlives that. In every other program they do nothing: what they call is not there.
#pragma once
#include <string_view>

namespace twinkle {

// Defined in tests/service/faults.cpp, which the program twinkle_with_faults alone links.
[[gnu::weak]] void reach_fault_point(std::string_view name);

// Any thread.
inline void fault(std::string_view name) {
  if (reach_fault_point) reach_fault_point(name);
}

}  // namespace twinkle
