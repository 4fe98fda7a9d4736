#include "twinkle/io/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle {

MappedFile::MappedFile(const std::filesystem::path& file) : path_(file) {
  const int fd = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    fail(error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kInvalid, "io: cannot open ",
         file.string(), ": ", std::strerror(error));
  }
  struct stat facts{};
  const bool regular = ::fstat(fd, &facts) == 0 && S_ISREG(facts.st_mode);
  const auto size = regular ? static_cast<size_t>(facts.st_size) : 0;
  void* start = nullptr;
  if (size > 0) start = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  const int error = errno;
  ::close(fd);
  require(regular, Code::kInvalid, "io: ", file.string(), " is not a regular file");
  require(start != MAP_FAILED, Code::kInvalid, "io: cannot map ", file.string(), " (", size,
          " bytes): ", std::strerror(error));
  bytes_ = {static_cast<const std::byte*>(start), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace twinkle
