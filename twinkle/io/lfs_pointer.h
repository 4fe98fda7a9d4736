// Git LFS leaves a pointer of a few lines in place of a file that was not fetched.
#pragma once
#include <algorithm>
#include <span>
#include <string>

#include "twinkle/base/encoding/text_fault.h"
#include "twinkle/base/error.h"
#include "twinkle/base/file.h"

namespace twinkle {

// Error kInvalid: the file is such a pointer.
inline void refuse_lfs_pointer(const File& file) {
  std::string begin(std::min<size_t>(64, static_cast<size_t>(file.size())), ' ');
  file.read_at(0, std::as_writable_bytes(std::span<char>(begin)));
  require(!is_lfs_pointer(begin), Code::kInvalid, "io: ", file.path().string(), " is ",
          kLfsPointer);
}

}  // namespace twinkle
