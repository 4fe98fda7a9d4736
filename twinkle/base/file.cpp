#include "twinkle/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>

#include "twinkle/base/error.h"

namespace twinkle {
namespace {

constexpr size_t kMaxRead = size_t{1} << 30;  // bytes per call; Linux reads at most 2 GiB

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return S_ISSOCK(mode) ? "a socket" : "something else";
}

bool is_missing(int error) { return error == ENOENT || error == ENOTDIR; }

}  // namespace

void FileHandle::reset(int fd) {
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

File::File(const std::filesystem::path& path, std::string_view folder)
    : path_(path),
      folder_(folder),
      file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
  const int error = errno;
  require(file_.get() >= 0, is_missing(error) ? Code::kNotFound : Code::kInvalid, folder_,
          ": cannot open ", path.string(), ": ", std::strerror(error));
  struct stat status{};
  const bool known = ::fstat(file_.get(), &status) == 0;
  require(known && S_ISREG(status.st_mode), Code::kInvalid, folder_, ": ", path.string(), " is ",
          known ? kind_of(status.st_mode) : std::strerror(errno), ", it must be a regular file");
  size_ = status.st_size;
}

void File::read_at(int64_t offset, std::span<std::byte> out) const {
  assert(offset >= 0 && std::ssize(out) <= size_ && offset <= size_ - std::ssize(out));
  while (!out.empty()) {
    const ssize_t count = ::pread(file_.get(), out.data(), std::min(out.size(), kMaxRead), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      fail(Code::kInvalid, folder_, ": cannot read ", path_.string(), ": ", std::strerror(errno));
    if (count == 0)
      fail(Code::kInvalid, folder_, ": ", path_.string(), " had ", size_,
           " bytes when it was opened and now ends at byte ", offset,
           ": it was cut or replaced meanwhile; wait until its writer is done, then read it again");
    offset += count;
    out = out.subspan(static_cast<size_t>(count));
  }
}

std::string read_file(const std::filesystem::path& path, std::string_view folder,
                      int64_t max_bytes) {
  const File file(path, folder);
  require(file.size() <= max_bytes, Code::kInvalid, folder, ": ", path.string(), " has ",
          file.size(), " bytes, the limit is ", max_bytes);
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span<char>(text)));
  return text;
}

bool is_there(const std::filesystem::path& path) {
  struct stat ignored{};
  return ::stat(path.c_str(), &ignored) == 0 || !is_missing(errno);
}

}  // namespace twinkle
