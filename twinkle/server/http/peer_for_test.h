// A client for tests: one connection of loopback or a Unix socket, text in and text out.
#pragma once
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace twinkle::server {

class Peer {
 public:
  // `buffer`: bytes that its socket takes before they are received; 0: as the system has it.
  explicit Peer(uint16_t port, int buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (buffer > 0) ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connect(reinterpret_cast<const sockaddr*>(&at), sizeof at);
  }
  explicit Peer(const std::string& unix_socket) : socket_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un at{.sun_family = AF_UNIX};
    unix_socket.copy(at.sun_path, sizeof at.sun_path - 1);
    connect(reinterpret_cast<const sockaddr*>(&at), sizeof at);
  }
  ~Peer() { ::close(socket_); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool connected() const { return connected_; }
  void send(const std::string& text) const {
    ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // One response with a Content-Length; "" where the connection has ended.
  std::string receive() {
    for (;;) {
      const size_t head = text_.find("\r\n\r\n");
      const size_t length = text_.find("Content-Length: ");
      if (head != std::string::npos && length < head) {
        const size_t whole = head + 4 + std::stoul(text_.substr(length + 16, 20));
        if (text_.size() >= whole) {
          std::string out = text_.substr(0, whole);
          text_.erase(0, whole);
          return out;
        }
      } else if (head != std::string::npos) {  // 100 Continue
        std::string out = text_.substr(0, head + 4);
        text_.erase(0, head + 4);
        return out;
      }
      char bytes[1 << 16];
      const ssize_t count = ::recv(socket_, bytes, sizeof bytes, 0);
      if (count <= 0) return "";
      text_.append(bytes, static_cast<size_t>(count));
    }
  }
  // The bytes that come, as far as `mark`; all of it where the connection ends before.
  std::string read_until(const std::string& mark) {
    for (size_t at = text_.find(mark);; at = text_.find(mark)) {
      if (at != std::string::npos) {
        std::string out = text_.substr(0, at + mark.size());
        text_.erase(0, at + mark.size());
        return out;
      }
      const size_t before = text_.size();
      take(1 << 16);
      if (text_.size() == before) return std::exchange(text_, "");
    }
  }
  // A response in chunks: its head, its body, and whether the last chunk has come.
  struct Chunked {
    std::string head, body;
    bool is_whole = false;
  };
  Chunked receive_chunks() {
    Chunked out{.head = read_until("\r\n\r\n")};
    for (;;) {
      const std::string size = read_until("\r\n");
      if (!size.ends_with("\r\n")) return out;
      const size_t bytes = std::stoul(size, nullptr, 16);
      while (text_.size() < bytes + 2) {
        const size_t before = text_.size();
        take(1 << 16);
        if (text_.size() == before) return out;
      }
      out.body += text_.substr(0, bytes);
      text_.erase(0, bytes + 2);
      if (bytes == 0) return out.is_whole = true, out;
    }
  }
  // So many bytes of what comes at most, which receive() then has; waits for the first.
  void take(size_t bytes) {
    std::string more(bytes, '\0');
    const ssize_t count = ::recv(socket_, more.data(), bytes, 0);
    if (count > 0) text_.append(more.data(), static_cast<size_t>(count));
  }
  const std::string& taken() const { return text_; }  // and not received
  std::string ask(const std::string& text) {
    send(text);
    return receive();
  }

 private:
  void connect(const sockaddr* at, socklen_t size) {
    const timeval limit{.tv_sec = 60};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    connected_ = ::connect(socket_, at, size) == 0;
  }

  const int socket_;
  bool connected_ = false;
  std::string text_;
};

inline std::string post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}
inline bool begins(const std::string& text, const std::string& with) {
  return text.rfind(with, 0) == 0;
}

}  // namespace twinkle::server
