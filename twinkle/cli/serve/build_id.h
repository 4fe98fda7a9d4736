// The linker's id of the running program: another for each build that differs.
#pragma once
#include <string>

namespace twinkle::cli {

// Hexadecimal digits, as `readelf -n` prints them; empty: it was linked without one.
std::string build_id();

}  // namespace twinkle::cli
