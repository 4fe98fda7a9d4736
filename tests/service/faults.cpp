// Makes twinkle_with_faults of bin/twinkle, for tests/service: it kills itself at a fault
// point, and has a disk that refuses or is slow.
//   TWINKLE_FAULT=POINT:COUNT   SIGKILL when the point is reached for the COUNT-th time
//   TWINKLE_FAULT_DISK=FILE     while there is such a file: it holds "refuse ERRNO", "slow MS", or
//                               "refuse-state ERRNO", of the file of the service's state alone
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <thread>

#include "twinkle/base/fault/fault.h"

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// The order in the file that controls the disk: the number behind this word, or 0.
int told(const std::string& wanted) {
  static const std::string path = variable("TWINKLE_FAULT_DISK");
  if (path.empty()) return 0;
  std::ifstream file(path);  // by fopen(), which calls none of those below
  std::string word;
  int number = 0;
  return file >> word >> number && word == wanted ? number : 0;
}

// While it is written.
bool is_of_state(int fd) {
  std::error_code ignored;
  const auto path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored).filename();
  return path.string().starts_with(".state.partial-");
}

void wait_for_disk() {
  if (const int ms = told("slow"); ms > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// The disk's answer to a call: its errno, or 0 where it takes it.
int refusal() {
  wait_for_disk();
  return told("refuse");
}

template <class... Arguments>
long call(long number, Arguments... arguments) {
  const int error = refusal();
  if (error == 0) return ::syscall(number, arguments...);
  errno = error;
  return -1;
}

}  // namespace

namespace twinkle {

void reach_fault_point(std::string_view name) {
  static const std::string wanted = variable("TWINKLE_FAULT");
  static const size_t colon = wanted.rfind(':');
  if (colon == std::string::npos || name != std::string_view(wanted).substr(0, colon)) return;
  static std::atomic<int> left = std::stoi(wanted.substr(colon + 1));
  if (--left == 0) ::kill(::getpid(), SIGKILL);
}

}  // namespace twinkle

// In place of the system's, also where a library calls them, as std::filesystem does: the program
// is compiled with hidden symbols.
#pragma GCC visibility push(default)

// For the journal and for the folders of saves.
extern "C" ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return call(SYS_pwritev, fd, parts, count, offset, 0L);
}
extern "C" int fdatasync(int fd) { return static_cast<int>(call(SYS_fdatasync, fd)); }
extern "C" int ftruncate(int fd, off_t bytes) noexcept {
  return static_cast<int>(call(SYS_ftruncate, fd, bytes));
}
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  return static_cast<int>(call(SYS_mkdirat, AT_FDCWD, path, mode));
}

// For all other files slow alone, and refusing for the state's: the rest is tested by full disks.
extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  wait_for_disk();
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
extern "C" int stat(const char* path, struct stat* out) noexcept {
  wait_for_disk();
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, out, 0));
}
extern "C" int faccessat(int folder, const char* path, int mode, int flags) noexcept {
  wait_for_disk();
  return static_cast<int>(::syscall(SYS_faccessat2, folder, path, mode, flags));
}
extern "C" ssize_t write(int fd, const void* bytes, size_t count) {
  struct stat s = {};
  if (::fstat(fd, &s) == 0 && S_ISREG(s.st_mode)) wait_for_disk();
  if (const int error = told("refuse-state"); error > 0 && is_of_state(fd)) {
    errno = error;
    return -1;
  }
  return ::syscall(SYS_write, fd, bytes, count);
}
extern "C" int rename(const char* from, const char* to) noexcept {
  wait_for_disk();
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
extern "C" int unlink(const char* path) noexcept {
  wait_for_disk();
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}
extern "C" int unlinkat(int folder, const char* path, int flags) noexcept {
  wait_for_disk();
  return static_cast<int>(::syscall(SYS_unlinkat, folder, path, flags));
}

#pragma GCC visibility pop
