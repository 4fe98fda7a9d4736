// The text of an exception for people: without torch's backtrace, and one text for memory that ran
// out, whichever allocator missed it.
#pragma once
#include <exception>
#include <string>

#include "twinkle/base/parallel.h"

namespace twinkle::engine {

// As long as the exception lives. Takes no memory of its own.
const char* text_of(const std::exception& error);

// The same of whatever was thrown, an Interrupted, too; of null: "".
inline std::string text_of(const std::exception_ptr& error) try {
  if (error) std::rethrow_exception(error);
  return {};
} catch (const std::exception& e) {
  return text_of(e);
} catch (const Interrupted&) {
  return Interrupted::kText;
}

}  // namespace twinkle::engine
