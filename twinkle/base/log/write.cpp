#include "twinkle/base/log/write.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>

namespace twinkle {

size_t write_within(int file, std::string_view text, std::chrono::milliseconds most, int stop) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + most;
  size_t written = 0;
  while (written < text.size()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    std::array<pollfd, 2> ends{{{.fd = file, .events = POLLOUT, .revents = 0},
                                {.fd = stop, .events = POLLIN, .revents = 0}}};
    const int ready =
        ::poll(ends.data(), ends.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
    if (ready < 0 && errno != EINTR) break;
    if (ends[1].revents != 0) break;
    if (ready == 0 && Clock::now() >= end) break;
    if (ends[0].revents == 0) continue;
    // A pipe that can be written takes so much without waiting.
    const ssize_t count =
        ::write(file, text.data() + written, std::min<size_t>(text.size() - written, PIPE_BUF));
    if (count < 0 && errno != EINTR && errno != EAGAIN) break;
    if (count > 0) written += static_cast<size_t>(count);
  }
  return written;
}

}  // namespace twinkle
