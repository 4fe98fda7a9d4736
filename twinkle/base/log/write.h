// Writes to a pipe, terminal or file whose reader may have stopped, which holds up an ordinary
// write for ever.
#pragma once
#include <chrono>
#include <cstddef>
#include <string_view>

namespace twinkle {

// How many bytes of the text were written: fewer where `most` is over, `stop`, if there is one, can
// be read, or the system refuses. Any thread.
size_t write_within(int file, std::string_view text, std::chrono::milliseconds most, int stop = -1);

}  // namespace twinkle
