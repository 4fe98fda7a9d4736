// Pages of 2 MiB for large blocks of memory: the system clears and maps each at once, where it
// takes 512 interruptions for small ones, and finds addresses in them faster.
#pragma once
#include <cstdint>

namespace twinkle {

inline constexpr int64_t kHugePage = int64_t{2} << 20;

// Asks for huge pages in [first, first + bytes), as far as whole ones fit, before it is first
// written to. A system without them uses small ones. Any thread.
void use_huge_pages(void* first, int64_t bytes);

}  // namespace twinkle
