#include "twinkle/store/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <tuple>

#include "twinkle/base/error.h"
#include "twinkle/store/system.h"

namespace twinkle::store {

namespace fs = std::filesystem;

namespace {

std::string written_in(const FileHandle& lock) {
  std::string pid(20, '\0');
  pid.resize(
      static_cast<size_t>(std::max<ssize_t>(0, ::pread(lock.get(), pid.data(), pid.size(), 0))));
  return pid.empty() ? "(unknown)" : pid;
}

// holder_of() has a lock for a moment, which must not refuse a start.
constexpr int kTries = 10;
constexpr std::chrono::milliseconds kPause{10};

bool try_lock(const FileHandle& file) {
  for (int i = 0; ::flock(file.get(), LOCK_EX | LOCK_NB) != 0; ++i) {
    if (errno != EWOULDBLOCK || i == kTries) return false;
    std::this_thread::sleep_for(kPause);
  }
  return true;
}

}  // namespace

FileHandle lock_folder(const fs::path& folder) {
  const fs::path path = folder / "lock";
  FileHandle lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  require_system(lock.get() >= 0, "open", path);
  if (!try_lock(lock)) {
    require_system(errno == EWOULDBLOCK, "lock", path);
    fail(Code::kConflict, "store: the folder ", folder.string(), " is open in process ",
         written_in(lock), "; end that one, or name another folder");
  }
  // For the text above alone: a full disk must not keep anybody from opening.
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(lock.get(), 0) == 0)
    std::ignore = ::pwrite(lock.get(), pid.data(), pid.size(), 0);
  return lock;
}

// A shared lock is let go of with the handle, at once.
std::optional<std::string> holder_of(const fs::path& folder) {
  const FileHandle lock(::open((folder / "lock").c_str(), O_RDONLY | O_CLOEXEC));
  if (lock.get() < 0 || ::flock(lock.get(), LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK)
    return std::nullopt;
  return written_in(lock);
}

}  // namespace twinkle::store
