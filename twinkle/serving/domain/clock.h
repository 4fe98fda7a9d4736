// The system's clock, which may be set back.
#pragma once
#include <chrono>
#include <cstdint>

namespace twinkle::server::core {

inline int64_t milliseconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace twinkle::server::core
