// Files that are read: regular ones alone, opened without waiting for anybody and never mapped, so
// that a FIFO cannot block, a device cannot be read without end, and a file that becomes shorter
// meanwhile is an error. Knows no format. A File may be read from any thread.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace twinkle {

// An open file descriptor that closes itself; -1 is none.
class FileHandle {
 public:
  FileHandle() = default;
  explicit FileHandle(int fd) : fd_(fd) {}
  ~FileHandle() { reset(); }
  FileHandle(FileHandle&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;

  int get() const { return fd_; }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

class File {
 public:
  // `folder` begins the texts of errors: "io". Error kNotFound: no such file; kInvalid: a folder, a
  // FIFO or another thing that is no regular file, or the system refuses.
  explicit File(const std::filesystem::path& path, std::string_view folder = "io");

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }  // bytes, when it was opened

  // Fills `out` with the bytes from `offset` on, which must be within size(). Error kInvalid: the
  // file has become shorter, or the system refuses. Throws Interrupted (parallel.h), too.
  void read_at(int64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  std::string folder_;
  FileHandle file_;
  int64_t size_ = 0;
};

// All of a file's bytes. Error kInvalid, too: more than max_bytes.
std::string read_file(const std::filesystem::path& path, std::string_view folder = "io",
                      int64_t max_bytes = std::numeric_limits<int64_t>::max());

// False only where nothing has that name, or its link leads nowhere. Opening says what is wrong
// with anything else.
bool is_there(const std::filesystem::path& path);

// These two instead of std::filesystem's, which end the process when memory runs out.

// The names in a folder, in no order; none, and why, where it can't be read.
std::vector<std::string> names_in(const std::filesystem::path& folder, std::error_code& error);

// Removes a file, or a folder and all that is in it, as far as the system allows.
void remove_tree(const std::filesystem::path& path) noexcept;

}  // namespace twinkle
