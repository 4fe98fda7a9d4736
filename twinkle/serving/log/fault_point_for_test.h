// For tests: the points at which a service may fail (base/fault/fault.h).
#pragma once
#include <functional>
#include <string_view>

namespace twinkle::server::core {

// The call of reach_fault_point() from here on, on any thread; defined in log/state_file_test.cpp.
void set_fault_point(std::function<void(std::string_view name)> then);

}  // namespace twinkle::server::core
