#include "twinkle/base/huge_pages.h"

#include <sys/mman.h>

namespace twinkle {

void use_huge_pages(void* first, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto address = reinterpret_cast<intptr_t>(first);
  const intptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const intptr_t end = (address + bytes) / kHugePage * kHugePage;
  if (begin >= end) return;
  // Refused: small pages do as well.
  madvise(reinterpret_cast<void*>(begin), static_cast<size_t>(end - begin), MADV_HUGEPAGE);
#else
  static_cast<void>(first), static_cast<void>(bytes);
#endif
}

}  // namespace twinkle
