// Reserves a folder for one process: a file `lock` in it, which the kernel lets go of with the
// process, however that ends.
#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "twinkle/base/file.h"

namespace twinkle::store {

// Held as long as what is returned. Error kConflict: another process has it; kInvalid: the system
// refuses.
FileHandle lock_folder(const std::filesystem::path& folder);

// The process that has it now, as it wrote down of itself, or "(unknown)"; nothing: none has, or
// that cannot be told. Writes nothing.
std::optional<std::string> holder_of(const std::filesystem::path& folder);

}  // namespace twinkle::store
