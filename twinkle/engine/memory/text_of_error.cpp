#include "twinkle/engine/memory/text_of_error.h"

#include <c10/util/Exception.h>

#include <cstring>
#include <new>

namespace twinkle::engine {

const char* text_of(const std::exception& error) {
  constexpr const char* kNoMemory = "the machine has no memory left for this: make it smaller";
  if (dynamic_cast<const std::bad_alloc*>(&error)) return kNoMemory;
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  if (!of_torch) return error.what();
  const char* text = of_torch->what_without_backtrace();
  // torch has a type of its own for a device's shortage alone.
  return std::strstr(text, "DefaultCPUAllocator") ? kNoMemory : text;
}

}  // namespace twinkle::engine
