#include "twinkle/server/connections/unix_socket.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"

namespace twinkle::server {
namespace {

constexpr size_t kMostPathBytes = sizeof(sockaddr_un::sun_path) - 1;

sockaddr_un socket_address(const std::string& path) {
  sockaddr_un out{.sun_family = AF_UNIX};
  std::ranges::copy(path, out.sun_path);
  return out;
}

[[noreturn]] void refuse_path(const std::string& path, int error) {
  fail(Code::kInvalid, "server: cannot listen on unix_socket '", path, "': ", std::strerror(error),
       "; make its folder writable, or give another --unix-socket");
}

// Removes a socket on which nobody listens.
void remove_dead(const std::string& path) {
  const FileHandle probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const sockaddr_un at = socket_address(path);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) {
    if (errno == ENOENT) return;
    if (errno == ECONNREFUSED && (::unlink(path.c_str()) == 0 || errno == ENOENT)) return;
    if (errno != EAGAIN) refuse_path(path, errno);  // that: it has no time for one more
  }
  fail(Code::kInvalid, "server: a server listens on unix_socket '", path,
       "' already; end it, or give another --unix-socket");
}

}  // namespace

void check_unix_socket(const std::string& path) {
  require(path.size() <= kMostPathBytes, Code::kInvalid, "server: unix_socket '", path, "' has ",
          path.size(), " bytes, it may have ", kMostPathBytes, "; give a shorter path");
  require(path.find(char{0}) == path.npos, Code::kInvalid,
          "server: unix_socket has a NUL byte; give the path of a file");
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  struct stat found{};
  require(::stat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode), Code::kInvalid,
          "server: unix_socket '", path, "' is in no folder: make ", folder.string(),
          ", or give another path");
  require(::lstat(path.c_str(), &found) != 0 || S_ISSOCK(found.st_mode), Code::kInvalid,
          "server: unix_socket '", path,
          "' is there and no socket; remove it, or give another path");
}

// Nobody connects between these calls: it does not listen yet.
UnixSocketFile::UnixSocketFile(const std::string& path, int socket)
    : path_(std::filesystem::absolute(path).string()) {
  check_unix_socket(path);
  remove_dead(path);
  const sockaddr_un at = socket_address(path);
  if (::bind(socket, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0)
    refuse_path(path, errno);
  struct stat made{};
  if (::chmod(path.c_str(), 0600) != 0 || ::lstat(path.c_str(), &made) != 0)
    refuse_path(path, errno);
  device_ = made.st_dev;
  inode_ = made.st_ino;
}

UnixSocketFile::~UnixSocketFile() {
  struct stat found{};
  if (::lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_)
    ::unlink(path_.c_str());
}

}  // namespace twinkle::server
