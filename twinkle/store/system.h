// Calls of the system: all of a file's part at once, and what it refuses as an Error.
#pragma once
#include <sys/uio.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <span>

#include "twinkle/base/error.h"

namespace twinkle::store {

// Error kInvalid, with errno's text, unless `ok`.
inline void require_system(bool ok, const char* action, const std::filesystem::path& path) {
  const int error = errno;
  require(ok, Code::kInvalid, "store: cannot ", action, " ", path.string(), ": ",
          std::strerror(error));
}

// Each: false, with errno, where the system refuses.
bool sync_folder(const std::filesystem::path& folder);
// Changes `parts`.
bool write_all(int fd, std::span<iovec> parts, int64_t offset);
// Fills `out`; false, too, where the file ends before.
bool read_all(int fd, std::span<char> out, int64_t offset);

}  // namespace twinkle::store
