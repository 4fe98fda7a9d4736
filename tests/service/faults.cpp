// What makes twinkle_with_faults of bin/twinkle, for tests/service: it kills itself at a fault
// point, and has a disk that refuses or is slow.
//   TWINKLE_FAULT=POINT:COUNT   SIGKILL when the point is reached for the COUNT-th time
//   TWINKLE_FAULT_DISK=FILE     while there is such a file: it holds "refuse ERRNO" or "slow MS"
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
#include <fstream>
#include <string>
#include <thread>

#include "twinkle/base/fault/fault.h"

namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// What the disk is told to do with a call: its errno, or 0 where it takes it.
int refusal() {
  static const std::string path = variable("TWINKLE_FAULT_DISK");
  std::ifstream file(path);
  std::string word;
  int number = 0;
  if (path.empty() || !(file >> word >> number)) return 0;
  if (word == "refuse") return number;
  std::this_thread::sleep_for(std::chrono::milliseconds(number));
  return 0;
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

// In place of the system's, for the journal and for the folders of saves.
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
