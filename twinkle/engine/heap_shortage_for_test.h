// For tests: memory of the heap runs out, on the thread that makes the object and while it lives.
// heap_for_test.h has the operator new that it steers.
#pragma once
#include <cstdint>

namespace twinkle::engine {

// Counts for this thread: allocations that succeed, and then those that fail. Below 0: all succeed.
extern constinit thread_local int64_t succeeding_allocations, failing_allocations;

class HeapShortage {
 public:
  explicit HeapShortage(int64_t num_left, int64_t num_refused = INT64_MAX) {
    succeeding_allocations = num_left;
    failing_allocations = num_refused;
  }
  ~HeapShortage() { succeeding_allocations = -1; }
  HeapShortage(const HeapShortage&) = delete;
  HeapShortage& operator=(const HeapShortage&) = delete;
};

// Allocations of this thread while it works.
template <class F>
int64_t num_allocations(F&& work) {
  const HeapShortage counted(INT64_MAX);
  work();
  return INT64_MAX - succeeding_allocations;
}

}  // namespace twinkle::engine
