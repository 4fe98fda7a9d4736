// The file of a Unix socket that a server listens on: only processes of its own user connect to it
// (mode 0600), and it goes with the server. Without Beast.
#pragma once
#include <sys/types.h>

#include <string>

namespace twinkle::server {

// Error kInvalid: the path is too long, its folder is not there, or it has something other than a
// socket. Changes nothing.
void check_unix_socket(const std::string& path);

class UnixSocketFile {
 public:
  // Binds `socket`, which does not listen yet. Replaces the file that a killed server has left.
  // Errors as of check_unix_socket, and kInvalid: a server that lives listens there, or the system
  // refuses.
  UnixSocketFile(const std::string& path, int socket);
  ~UnixSocketFile();  // removes it, unless it is another's by now
  UnixSocketFile(const UnixSocketFile&) = delete;
  UnixSocketFile& operator=(const UnixSocketFile&) = delete;

 private:
  const std::string path_;
  dev_t device_ = 0;  // the file's, as ...
  ino_t inode_ = 0;   // ... this
};

}  // namespace twinkle::server
