// What an exception says to people: without torch's backtrace, and one text for memory that ran
// out, whichever allocator missed it.
#pragma once
#include <exception>

namespace twinkle::engine {

// As long as the exception lives. Takes no memory of its own.
const char* text_of(const std::exception& error);

}  // namespace twinkle::engine
