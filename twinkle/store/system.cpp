#include "twinkle/store/system.h"

#include <fcntl.h>
#include <unistd.h>

#include "twinkle/base/file.h"

namespace twinkle::store {

bool sync_folder(const std::filesystem::path& folder) {
  const FileHandle opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // Some network mounts cannot sync folders and say EINVAL.
  return opened.get() >= 0 && (::fsync(opened.get()) == 0 || errno == EINVAL);
}

bool write_all(int fd, std::span<iovec> parts, int64_t offset) {
  while (!parts.empty()) {
    const ssize_t count = ::pwritev(fd, parts.data(), static_cast<int>(parts.size()), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    offset += count;
    size_t left = static_cast<size_t>(count);
    while (!parts.empty() && left >= parts.front().iov_len) {
      left -= parts.front().iov_len;
      parts = parts.subspan(1);
    }
    if (left == 0) continue;
    parts.front().iov_base = static_cast<char*>(parts.front().iov_base) + left;
    parts.front().iov_len -= left;
  }
  return true;
}

bool read_all(int fd, std::span<char> out, int64_t offset) {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    offset += count;
    out = out.subspan(static_cast<size_t>(count));
  }
  return true;
}

}  // namespace twinkle::store
