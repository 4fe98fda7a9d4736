#include "twinkle/mesh/rendezvous/sockets.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <map>
#include <sstream>

#include "twinkle/base/error.h"
#include "twinkle/base/parallel.h"

namespace twinkle::mesh {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kSecretBytes = 16;
constexpr size_t kGreeting = 2 * kSecretBytes + 16;  // the secret in hexadecimal, a rank, a newline

std::string text_of_errno() { return std::strerror(errno); }

// Waits until the socket can be read, or written to. False: not in time.
bool is_ready(const Socket& socket, short events, double timeout_s) {
  const auto end = Clock::now() + std::chrono::duration<double>(timeout_s);
  pollfd one{.fd = socket.get(), .events = events, .revents = 0};
  while (poll(&one, 1, static_cast<int>(Interrupt::kSlice.count())) <= 0) {
    Interrupt::check();
    if (Clock::now() > end) return false;
  }
  return true;
}

// INADDR_NONE: none has this name.
in_addr_t ipv4_of(const std::string& host) {
  const addrinfo wanted{.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &wanted, &found) != 0) return INADDR_NONE;
  sockaddr_in first{};
  std::memcpy(&first, found->ai_addr, sizeof(first));
  freeaddrinfo(found);
  return first.sin_addr.s_addr;
}

sockaddr_in address_of(in_addr_t host, uint16_t port) {
  sockaddr_in out{};
  out.sin_family = AF_INET;
  out.sin_addr.s_addr = host;
  out.sin_port = htons(port);
  return out;
}

const sockaddr* plain(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

Socket new_socket(int flags) {
  Socket out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | flags, 0));
  require(out.get() >= 0, Code::kNotFound, "no socket: ", text_of_errno());
  return out;
}

Socket listening_at(const std::vector<std::string>& hosts) {
  std::string why;
  for (const std::string& host : hosts) {
    const in_addr_t number = ipv4_of(host);
    Socket out = new_socket(0);
    const sockaddr_in address = address_of(number, 0);
    if (number != INADDR_NONE && bind(out.get(), plain(address), sizeof(address)) == 0 &&
        listen(out.get(), SOMAXCONN) == 0)
      return out;
    why += (why.empty() ? "" : ", ") + host + ": " +
           (number == INADDR_NONE ? "no host has this name" : text_of_errno());
  }
  fail(Code::kNotFound, "nowhere to listen: ", why);
}

std::string drawn_secret() {
  std::array<uint8_t, kSecretBytes> bytes{};
  require(getrandom(bytes.data(), bytes.size(), 0) == std::ssize(bytes), Code::kNotFound,
          "no random bytes: ", text_of_errno());
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  for (const uint8_t byte : bytes) {
    out += kDigits[byte >> 4];
    out += kDigits[byte & 15];
  }
  return out;
}

std::string address_text(const Socket& socket, const std::string& secret) {
  sockaddr_in own{};
  socklen_t size = sizeof(own);
  require(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) == 0, Code::kNotFound,
          "no address of a socket: ", text_of_errno());
  std::array<char, INET_ADDRSTRLEN> host{};
  inet_ntop(AF_INET, &own.sin_addr, host.data(), host.size());
  return std::string(host.data()) + ' ' + std::to_string(ntohs(own.sin_port)) + ' ' + secret;
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}

Listener::Listener(const std::vector<std::string>& hosts)
    : socket_(listening_at(hosts)),
      secret_(drawn_secret()),
      address_(address_text(socket_, secret_)) {}

std::vector<Socket> Listener::accept(int size, double timeout_s) const {
  std::map<int, Socket> found;
  while (std::ssize(found) < size - 1) {
    require(is_ready(socket_, POLLIN, timeout_s), Code::kNotFound, "of ", size - 1, " ranks ",
            found.size(), " have connected, and no other within ", timeout_s, " s");
    Socket one(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (one.get() < 0) continue;  // it has gone again
    const int rank = rank_said(one, timeout_s);
    if (rank > 0 && rank < size) found.try_emplace(rank, std::move(one));
  }
  std::vector<Socket> out;
  for (auto& [rank, socket] : found) out.push_back(std::move(socket));
  return out;
}

int Listener::rank_said(const Socket& from, double timeout_s) const {
  std::string said;
  while (said.size() < kGreeting && said.find('\n') == std::string::npos) {
    std::array<char, kGreeting> part{};
    if (!is_ready(from, POLLIN, timeout_s)) return 0;
    // No byte behind the line: what follows is the watch's.
    const ssize_t count = recv(from.get(), part.data(), 1, 0);
    if (count <= 0) return 0;
    said.append(part.data(), static_cast<size_t>(count));
  }
  if (!said.starts_with(secret_)) return 0;
  int rank = 0;
  std::from_chars(said.data() + secret_.size(), said.data() + said.size(), rank);
  return rank;
}

Socket connected(const std::string& address, int rank, double timeout_s) {
  std::istringstream parts(address);
  std::string host, secret;
  uint16_t port = 0;
  parts >> host >> port >> secret;
  const sockaddr_in to = address_of(ipv4_of(host), port);
  Socket out = new_socket(SOCK_NONBLOCK);
  const auto refuse = [&](const std::string& why) {
    fail(Code::kNotFound, "no connection to rank 0 at ", host, ":", port, ": ", why);
  };
  if (::connect(out.get(), plain(to), sizeof(to)) != 0) {
    if (errno != EINPROGRESS) refuse(text_of_errno());
    std::ostringstream late;
    late << "no answer within " << timeout_s << " s";
    if (!is_ready(out, POLLOUT, timeout_s)) refuse(late.str());
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(out.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) refuse(std::strerror(error));
  }
  const std::string line = secret + std::to_string(rank) + '\n';
  if (::send(out.get(), line.data(), line.size(), MSG_NOSIGNAL) != std::ssize(line))
    refuse(text_of_errno());
  return out;
}

}  // namespace twinkle::mesh
