// TCP connections of the ranks of a script to the first one, before there is a watch that takes
// them over. Who connects says a secret, which a store has told the ranks alone: others that reach
// the port are strangers, and are sent away.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace twinkle::mesh {

// A socket's number, which is closed with it. A program that this process starts does not get it.
class Socket {
 public:
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

// Errors kNotFound of all here: what the network says, or a rank that has not come in time. The
// waits end early where the thread is interrupted (base/parallel.h).
class Listener {
 public:
  // Listens at the first of `hosts`, names or IPv4 addresses, that is one of this machine's.
  explicit Listener(const std::vector<std::string>& hosts);

  // For connected(): the IPv4 address, the port and the secret.
  const std::string& address() const { return address_; }

  // The connections of ranks 1 to size - 1, in their order. timeout_s: without another connection.
  std::vector<Socket> accept(int size, double timeout_s) const;

 private:
  int rank_said(const Socket& from, double timeout_s) const;  // 0: a stranger

  Socket socket_;
  std::string secret_, address_;
};

// A connection of this rank to the Listener of an address.
Socket connected(const std::string& address, int rank, double timeout_s);

}  // namespace twinkle::mesh
