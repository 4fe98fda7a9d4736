// What the system refuses, as an Error.
#pragma once
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "twinkle/base/error.h"

namespace twinkle::store {

// Error kInvalid, with errno's text, unless `ok`.
inline void require_system(bool ok, const char* action, const std::filesystem::path& path) {
  const int error = errno;
  require(ok, Code::kInvalid, "store: cannot ", action, " ", path.string(), ": ",
          std::strerror(error));
}

}  // namespace twinkle::store
