// Folders of what is nobody else's: a service's state holds what its tenants sent.
#pragma once
#include <filesystem>
#include <system_error>

namespace twinkle {

// Makes the folder and its parents, as far as they are not there, for this user alone (0700); those
// that are there stay as they are. Whether the folder was made.
bool make_private_folders(const std::filesystem::path& folder, std::error_code& error);

}  // namespace twinkle
