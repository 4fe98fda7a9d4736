// For programs that link no torch: there is no text of torch's (cmake/programs.cmake).
#include "twinkle/engine/memory/text_of_error.h"

namespace twinkle::engine {

const char* text_of(const std::exception& error) { return error.what(); }

}  // namespace twinkle::engine
