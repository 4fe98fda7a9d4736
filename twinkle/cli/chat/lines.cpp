#include "twinkle/cli/chat/lines.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "twinkle/base/error.h"

namespace twinkle::cli {

std::optional<std::string> Lines::next() {
  while (true) {
    const size_t end = held_.find('\n');
    if (end != held_.npos || (ended_ && !held_.empty())) {
      std::string line = held_.substr(0, end);
      held_.erase(0, end == held_.npos ? end : end + 1);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return line;
    }
    if (ended_) return {};
    std::array<pollfd, 2> waits{{{fd_, POLLIN, 0}, {wake_, POLLIN, 0}}};
    if (::poll(waits.data(), waits.size(), -1) < 0 && errno == EINTR) continue;
    if (waits[1].revents != 0) {
      held_.clear();
      return "";
    }
    std::array<char, 4096> chunk{};
    const ssize_t count = ::read(fd_, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    require(count >= 0, Code::kInvalid,
            "cli: standard input cannot be read: ", std::strerror(errno));
    ended_ = count == 0;
    held_.append(chunk.data(), static_cast<size_t>(count));
  }
}

}  // namespace twinkle::cli
