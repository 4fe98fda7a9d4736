#include "twinkle/io/atomic.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/fault/fault.h"

namespace twinkle {

namespace fs = std::filesystem;

namespace {

bool is_full(int error) { return error == ENOSPC || error == EDQUOT || error == EFBIG; }

// A caller can name another path, but not mend the machine.
[[noreturn]] void fail_system(std::string_view action, const fs::path& path, int error) {
  const bool is_machines =
      is_full(error) || error == EIO || error == EROFS || error == EMFILE || error == ENFILE;
  fail(is_machines ? Code::kInternal : Code::kInvalid, "io: cannot ", action, " ", path.string(),
       ": ", std::strerror(error),
       is_full(error) ? "; free space there or save elsewhere, what was saved before is untouched"
                      : "");
}

fs::path parent_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// False, too, for what cannot be accessed: opening it then says why.
bool there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

constexpr std::string_view kPartial = ".partial-", kOld = ".old";
constexpr size_t kPartialBytes = sizeof("..partial-") - 1 + 12;  // in addition to the target's name

std::string partial_prefix(const fs::path& target) {
  return std::string(".").append(target.filename().string()).append(kPartial);
}

fs::path partial_name(const fs::path& target) {
  static constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device random;
  std::string name = partial_prefix(target);
  for (int i = 0; i < 12; ++i) name += kDigits[random() % kDigits.size()];
  return parent_of(target) / name;
}

// Removes partials of `target` that no living process holds. A folder that cannot be listed keeps
// them.
void remove_leftovers(const fs::path& target) {
  const std::string prefix = partial_prefix(target);
  const fs::path parent = parent_of(target);
  std::error_code ignored;
  for (const std::string& name : names_in(parent, ignored)) {
    if (!name.starts_with(prefix)) continue;
    const fs::path path = parent / name;
    const FileHandle held(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (held.get() < 0 || ::flock(held.get(), LOCK_EX | LOCK_NB) != 0) continue;
    remove_tree(path);
  }
}

// True if `fd`, now locked, is still the file that `path` names: another process may have removed
// it before the lock.
bool lock(int fd, const fs::path& path) {
  struct stat opened{}, named{};
  return ::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::fstat(fd, &opened) == 0 &&
         ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

void sync_path(const fs::path& path) {
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail_system("open", path, errno);
  // Some network mounts cannot sync folders and say EINVAL.
  if (::fsync(file.get()) != 0 && errno != EINVAL) fail_system("write", path, errno);
}

// The name of `path` in its folder. A folder that may be written to but not listed cannot be opened
// for fsync: then its whole file system is synced, by way of `path`.
void sync_entry(const fs::path& path) {
  const fs::path folder = parent_of(path);
  if (::faccessat(AT_FDCWD, folder.c_str(), R_OK, AT_EACCESS) == 0 || errno != EACCES)
    return sync_path(folder);
  const FileHandle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0 || ::syncfs(file.get()) != 0) fail_system("write", path, errno);
}

void sync_tree(const fs::path& dir) {
  std::error_code error;
  const std::vector<std::string> names = names_in(dir, error);
  if (error) fail_system("write", dir, error.value());
  for (const std::string& name : names) {
    const fs::path path = dir / name;
    const fs::file_type type = fs::symlink_status(path, error).type();
    if (type == fs::file_type::directory)
      sync_tree(path);
    else if (type != fs::file_type::symlink)
      sync_path(path);
  }
  sync_path(dir);
}

void rename_path(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_system("write", to, errno);
}

fs::path old_name(const fs::path& target) {
  return parent_of(target) / std::string(".").append(target.filename().string()).append(kOld);
}

fs::path without_slash(const fs::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

// Unchanged where the working directory is gone.
fs::path from_root(const fs::path& path) {
  std::error_code error;
  const fs::path out = fs::absolute(path, error);
  return error ? path : out;
}

// Where a link leads that leads to nothing yet; else `path`.
fs::path followed(fs::path path) {
  constexpr int kMaxLinks = 40;  // Linux's
  std::error_code error;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(path, error) && !is_there(path); ++i) {
    path = parent_of(path) / fs::read_symlink(path, error);
  }
  return path;
}

// Without links and trailing slashes, so that renaming it replaces the folder itself.
fs::path resolved(const fs::path& target) {
  std::error_code error;
  fs::path path = fs::weakly_canonical(followed(without_slash(target)), error);
  if (error || path.empty()) path = from_root(target).lexically_normal();
  return without_slash(path);
}

// Limits of Linux's file systems.
void check_lengths(const fs::path& path, const fs::path& target, std::string_view field) {
  constexpr size_t kFiles = 100;  // for the names of files in the folder, partial ones too
  const auto check = [&](const char* what, size_t bytes, size_t max) {
    require(bytes <= max, Code::kInvalid, field, " ", target.string(), " has a ", what, " of ",
            bytes, " bytes, it must have at most ", max, "; shorten it");
  };
  check("name", path.filename().native().size(), NAME_MAX - kPartialBytes);
  for (const fs::path& part : path) check("name", part.native().size(), NAME_MAX);
  check("path", path.native().size(), PATH_MAX - 1 - kPartialBytes - kFiles);
}

// A folder's name is in its parent, which is synced: else the save may be lost with it.
void make_parents(const fs::path& target) {
  std::vector<fs::path> parents;  // that are to be made, the deepest first
  for (fs::path path = parent_of(target); !is_there(path); path = parent_of(path)) {
    parents.push_back(path);
  }
  std::error_code error;
  fs::create_directories(parent_of(target), error);
  if (error) fail_system("make the folder", parent_of(target), error.value());
  for (const fs::path& made : parents) sync_entry(made);
}

// Puts `from` in the place of the folder `to` if both can be done at once: another process may have
// made `to` or taken it away meanwhile. What was there is `from` then. False: the file system
// cannot exchange.
bool move_or_exchange(const fs::path& from, const fs::path& to) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    if (::rename(from.c_str(), to.c_str()) == 0) return true;  // there was none, or an empty one
    if (errno != ENOTEMPTY && errno != EEXIST) fail_system("write", to, errno);
    if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0)
      return true;
    if (errno != ENOENT) return false;
  }
  return false;
}

}  // namespace

AtomicFile::AtomicFile(const fs::path& target, Commits how) : how_(how), target_(target) {
  require(!is_folder(target), Code::kInvalid, "io: cannot write the file ", target.string(),
          ": it is a folder");
  if (how_ == Commits::kWithFolder) {
    file_.reset(::open(target_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (file_.get() < 0) fail_system("write", target_, errno);
    partial_ = target_;
    return;
  }
  remove_leftovers(target_);
  do {
    partial_ = partial_name(target_);
    file_.reset(::open(partial_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file_.get() < 0 && errno != EEXIST) fail_system("write", target_, errno);
  } while (file_.get() < 0 || !lock(file_.get(), partial_));
}

AtomicFile::~AtomicFile() {
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count == 0 ? ENOSPC : errno;
      fail_system("write more than " + std::to_string(written_) + " bytes of", target_, error);
    }
    written_ += count;
    bytes = bytes.subspan(count);
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

void AtomicFile::sync() {
  if (::fsync(file_.get()) != 0) fail_system("write", target_, errno);
}

void AtomicFile::commit() {
  assert(!partial_.empty());
  if (how_ == Commits::kWithFolder) return partial_.clear();
  sync();
  rename_path(partial_, target_);
  partial_.clear();
  sync_entry(target_);
}

void write_file_atomically(const fs::path& target, std::string_view text, Commits how) {
  AtomicFile file(target, how);
  file.write(text);
  file.commit();
}

AtomicDirectory::AtomicDirectory(const fs::path& target) : target_(resolved(target)) {
  require(!there(target_) || is_folder(target_), Code::kInvalid, "io: cannot save into the folder ",
          target_.string(), ": it is a file");
  make_parents(target_);
  if (!there(target_) && there(old_name(target_))) {
    rename_path(old_name(target_), target_);  // a crash between the two renames of commit
  }
  remove_leftovers(target_);
  do {
    staging_ = partial_name(target_);
    if (::mkdir(staging_.c_str(), 0777) != 0 && errno != EEXIST) {
      const int error = errno;
      staging_.clear();
      fail_system("save into", target_, error);
    }
    lock_.reset(::open(staging_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  } while (lock_.get() < 0 || !lock(lock_.get(), staging_));
}

AtomicDirectory::~AtomicDirectory() {
  if (!staging_.empty()) remove_tree(staging_);
}

void AtomicDirectory::commit() {
  assert(!staging_.empty());
  sync_tree(staging_);
  fault("before rename");
  if (move_or_exchange(staging_, target_)) {
    fault("after rename");
    sync_entry(target_);
    remove_tree(staging_);  // the old one, under the staging name
  } else {
    const fs::path old = old_name(target_);
    remove_tree(old);
    rename_path(target_, old);
    if (::rename(staging_.c_str(), target_.c_str()) != 0) {
      const int error = errno;
      rename_path(old, target_);
      fail_system("write", target_, error);
    }
    remove_tree(old);
  }
  staging_.clear();
  sync_entry(target_);
}

bool is_partial_name(std::string_view name) {
  return name.starts_with('.') &&
         (name.find(kPartial) != std::string_view::npos || name.ends_with(kOld));
}

void check_writable(const fs::path& target, std::string_view field) {
  const fs::path path = from_root(resolved(target));
  check_lengths(path, target, field);
  fs::path there = path;  // the nearest that exists
  std::error_code error;
  fs::file_status status = fs::status(there, error);
  while (status.type() == fs::file_type::not_found && there.has_relative_path()) {
    there = there.parent_path();
    status = fs::status(there, error);
  }
  require(fs::status_known(status) && fs::exists(status), Code::kInvalid, field, " ",
          target.string(), " cannot be accessed: ", error.message(), "; name another directory");
  require(fs::is_directory(status), Code::kInvalid, field, " ", target.string(),
          there == path ? " is a file" : " is below the file " + there.string(),
          "; name a directory");
  // A save writes its partial folder next to its target.
  const fs::path parent = there == path ? path.parent_path() : there;
  const bool may = ::faccessat(AT_FDCWD, parent.c_str(), W_OK | X_OK, AT_EACCESS) == 0;
  const int refusal = may ? 0 : errno;
  require(refusal != EACCES && refusal != EROFS, Code::kInvalid, field, " ", target.string(),
          " cannot be written: ", parent.string(), ": ", std::strerror(refusal),
          "; name another directory");
}

}  // namespace twinkle
