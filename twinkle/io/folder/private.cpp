#include "twinkle/io/folder/private.h"

#include <sys/stat.h>

#include <cerrno>

namespace twinkle {

namespace fs = std::filesystem;

bool make_private_folders(const fs::path& folder, std::error_code& error) {
  error.clear();
  if (fs::is_directory(folder, error)) return false;
  const fs::path parent = folder.parent_path();
  error.clear();
  if (!parent.empty() && parent != folder) make_private_folders(parent, error);
  if (error || folder.filename().empty()) return false;
  if (::mkdir(folder.c_str(), 0700) == 0) return true;
  const int why = errno;
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) error = {why, std::generic_category()};
  return false;
}

}  // namespace twinkle
