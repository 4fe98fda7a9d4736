#include "twinkle/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <memory>

#include "twinkle/base/error.h"
#include "twinkle/base/parallel.h"

namespace twinkle {
namespace {

constexpr size_t kMaxRead = size_t{8} << 20;  // bytes per call, after which Ctrl-C is seen

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return S_ISSOCK(mode) ? "a socket" : "something else";
}

bool is_missing(int error) { return error == ENOENT || error == ENOTDIR; }

const char* remedy_of(int error) {
  if (error == EACCES) return "; make it readable for this user";
  if (error == ELOOP) return "; put the file itself there";
  return "";
}

using Folder = std::unique_ptr<DIR, decltype([](DIR* d) { ::closedir(d); })>;

// The next name but "." and ".."; null at the end, or with errno.
const char* next_name(DIR* folder) {
  while (true) {
    errno = 0;
    const dirent* entry = ::readdir(folder);
    if (!entry) return nullptr;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") return entry->d_name;
  }
}

// The folder `in` is open.
void remove_tree(int in, const char* name) {
  if (::unlinkat(in, name, 0) == 0 || (errno != EISDIR && errno != EPERM)) return;
  const int fd = ::openat(in, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  const Folder folder(::fdopendir(fd));
  if (!folder && fd >= 0) ::close(fd);
  while (const char* inside = folder ? next_name(folder.get()) : nullptr) remove_tree(fd, inside);
  ::unlinkat(in, name, AT_REMOVEDIR);
}

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
          ": cannot open ", path.string(), ": ", std::strerror(error), remedy_of(error));
  struct stat status{};
  const bool known = ::fstat(file_.get(), &status) == 0;
  require(known && S_ISREG(status.st_mode), Code::kInvalid, folder_, ": ", path.string(), " is ",
          known ? kind_of(status.st_mode) : std::strerror(errno), ", it must be a regular file");
  size_ = status.st_size;
}

void File::read_at(int64_t offset, std::span<std::byte> out) const {
  assert(offset >= 0 && std::ssize(out) <= size_ && offset <= size_ - std::ssize(out));
  while (!out.empty()) {
    Interrupt::check();
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

std::vector<std::string> names_in(const std::filesystem::path& folder, std::error_code& error) {
  std::vector<std::string> out;
  const Folder opened(::opendir(folder.c_str()));
  while (const char* name = opened ? next_name(opened.get()) : nullptr) out.emplace_back(name);
  error.assign(errno, std::generic_category());
  return error ? std::vector<std::string>() : out;
}

void remove_tree(const std::filesystem::path& path) noexcept {
  remove_tree(AT_FDCWD, path.c_str());
}

}  // namespace twinkle
