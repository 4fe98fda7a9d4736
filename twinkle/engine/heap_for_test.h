// For tests: the operator new that heap_shortage_for_test.h steers. One file of a program includes
// it.
#pragma once
#include <cstdlib>
#include <new>

#include "twinkle/engine/heap_shortage_for_test.h"

namespace twinkle::engine {

constinit thread_local int64_t succeeding_allocations = -1, failing_allocations = 0;

}  // namespace twinkle::engine

// Not inlined: a compiler that sees one half of a pair warns of the other.
[[gnu::noinline]] void* operator new(size_t size) {
  using namespace twinkle::engine;
  if (succeeding_allocations > 0) {
    --succeeding_allocations;
  } else if (succeeding_allocations == 0) {
    if (--failing_allocations <= 0) succeeding_allocations = -1;
    throw std::bad_alloc();
  }
  if (void* out = std::malloc(size > 0 ? size : 1)) return out;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
