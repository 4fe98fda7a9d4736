// A whole file mapped read-only into memory; the mapping lives as long as the object. Knows nothing
// of formats. Bytes may be read from any thread. Writing into the file while it is mapped is
// undefined: savers replace files instead.
#pragma once
#include <cstddef>
#include <filesystem>
#include <span>

namespace twinkle {

class MappedFile {
 public:
  // Error kNotFound: no such file; kInvalid: not a regular file, or the system refuses to map it.
  explicit MappedFile(const std::filesystem::path& file);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

}  // namespace twinkle
