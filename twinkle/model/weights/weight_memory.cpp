#include "twinkle/model/weights/weight_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <numeric>

#include "twinkle/base/huge_pages.h"

namespace twinkle::model {
namespace {

constexpr int64_t kBlock = int64_t{32} << 20;  // unused pages of it are never touched
constexpr int64_t kSmall = int64_t{64} << 10;
constexpr int64_t kLine = 64;

int64_t rounded(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Empty when the system refuses.
std::shared_ptr<char> map_block(int64_t bytes) {
  const auto length =
      static_cast<size_t>(bytes + kHugePage);  // so that a huge page can start in it
  void* at = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return {};
  const auto address = reinterpret_cast<intptr_t>(at);
  char* first = static_cast<char*>(at) + (rounded(address, kHugePage) - address);
  use_huge_pages(first, bytes);
  return {first, [at, length](char*) { munmap(at, length); }};
}

}  // namespace

at::Tensor WeightMemory::empty(at::IntArrayRef shape, at::ScalarType dtype) {
  const int64_t count = std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies{});
  const int64_t bytes = rounded(count * static_cast<int64_t>(at::elementSize(dtype)), kLine);
  if (bytes < kSmall) return at::empty(shape, dtype);
  if (bytes > size_ - used_) {
    const int64_t size = std::max(kBlock, rounded(bytes, kHugePage));
    std::shared_ptr<char> block = map_block(size);
    if (!block) return at::empty(shape, dtype);
    block_ = std::move(block), size_ = size, used_ = 0;
  }
  char* place = block_.get() + used_;
  used_ += bytes;
  return at::from_blob(place, shape, [block = block_](void*) {}, at::dtype(dtype));
}

void keep_heap_pages() {
#ifdef __GLIBC__
  // One heap for all threads: those of others are mapped and unmapped 64 MiB at a time.
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 8 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
#endif
}

}  // namespace twinkle::model
