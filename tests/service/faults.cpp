// What makes twinkle_with_faults of bin/twinkle, for tests/service: it kills itself at a fault
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

// What the disk is told to do.
struct Told {
  std::string word;
  int number = 0;
};

Told told() {
  static const std::string path = variable("TWINKLE_FAULT_DISK");
  Told out;
  if (!path.empty()) std::ifstream(path) >> out.word >> out.number;
  return out;
}

// While it is written.
bool is_of_state(int fd) {
  std::error_code ignored;
  const auto path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), ignored).filename();
  return path.string().starts_with(".state.partial-");
}

template <class... Arguments>
long call(long number, Arguments... arguments) {
  const Told disk = told();
  if (disk.word == "slow") std::this_thread::sleep_for(std::chrono::milliseconds(disk.number));
  if (disk.word != "refuse") return ::syscall(number, arguments...);
  errno = disk.number;
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

// In place of the system's, for the journal and for the folders of saves.
extern "C" ssize_t pwritev(int fd, const iovec* parts, int count, off_t offset) {
  return call(SYS_pwritev, fd, parts, count, offset, 0L);
}
extern "C" ssize_t write(int fd, const void* bytes, size_t count) {
  const Told disk = told();
  if (disk.word != "refuse-state" || !is_of_state(fd))
    return ::syscall(SYS_write, fd, bytes, count);
  errno = disk.number;
  return -1;
}
extern "C" int fdatasync(int fd) { return static_cast<int>(call(SYS_fdatasync, fd)); }
extern "C" int ftruncate(int fd, off_t bytes) noexcept {
  return static_cast<int>(call(SYS_ftruncate, fd, bytes));
}
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  return static_cast<int>(call(SYS_mkdirat, AT_FDCWD, path, mode));
}
