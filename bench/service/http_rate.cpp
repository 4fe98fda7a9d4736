// How many small requests a second an HTTP server answers: several connections that stay, each with
// one request on its way, by epoll. Usage: http_rate PORT CONNECTIONS SECONDS REQUEST, where
// REQUEST is a file with the bytes of one. Prints requests per second; ends with 1 where an answer
// is no 200.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/error.h"
#include "twinkle/base/file.h"

namespace {

using twinkle::Code;
using twinkle::require;

twinkle::FileHandle connected(uint16_t port) {
  twinkle::FileHandle out(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int on = 1;
  ::setsockopt(out.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  require(::connect(out.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
          Code::kInvalid, "cannot connect to port ", port);
  return out;
}

void send(int fd, std::string_view request) {
  const ssize_t sent = ::send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  require(sent == static_cast<ssize_t>(request.size()), Code::kInvalid, "a request was not taken");
}

// True: all of an answer is there.
bool is_whole(std::string_view answer) {
  constexpr std::string_view kLength = "Content-Length: ";
  const size_t end = answer.find("\r\n\r\n"), field = answer.find(kLength);
  if (end == std::string_view::npos) return false;
  require(answer.starts_with("HTTP/1.1 200 ") && field < end, Code::kInvalid,
          "an answer is no 200 with a Content-Length: ", answer);
  size_t length = 0;
  std::from_chars(answer.data() + field + kLength.size(), answer.data() + end, length);
  return answer.size() >= end + 4 + length;
}

double rate(uint16_t port, int num_connections, double seconds, const std::string& request) {
  const twinkle::FileHandle poll(::epoll_create1(EPOLL_CLOEXEC));
  std::vector<twinkle::FileHandle> connections;
  std::vector<std::string> answers(static_cast<size_t>(num_connections));
  for (uint64_t i = 0; i < answers.size(); ++i) {
    connections.push_back(connected(port));
    epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
    ::epoll_ctl(poll.get(), EPOLL_CTL_ADD, connections[i].get(), &event);
    send(connections[i].get(), request);
  }
  const auto begin = std::chrono::steady_clock::now();
  int64_t count = 0;
  for (std::chrono::duration<double> passed{0}; passed.count() < seconds;
       passed = std::chrono::steady_clock::now() - begin) {
    std::array<epoll_event, 64> events{};
    const int ready = ::epoll_wait(poll.get(), events.data(), events.size(), 1000);
    require(ready > 0, Code::kInvalid, "no answer came within a second");
    for (int e = 0; e < ready; ++e) {
      const uint64_t i = events[static_cast<size_t>(e)].data.u64;
      std::array<char, 16384> bytes{};
      const ssize_t got = ::recv(connections[i].get(), bytes.data(), bytes.size(), 0);
      require(got > 0, Code::kInvalid, "the server closed a connection");
      answers[i].append(bytes.data(), static_cast<size_t>(got));
      if (!is_whole(answers[i])) continue;
      answers[i].clear();
      ++count;
      send(connections[i].get(), request);
    }
  }
  const std::chrono::duration<double> all = std::chrono::steady_clock::now() - begin;
  return static_cast<double>(count) / all.count();
}

}  // namespace

int main(int argc, char** argv) try {
  require(argc == 5, Code::kInvalid, "usage: http_rate PORT CONNECTIONS SECONDS REQUEST");
  const std::string request = twinkle::read_file(argv[4]);
  std::printf("%.0f\n", rate(static_cast<uint16_t>(std::stoi(argv[1])), std::stoi(argv[2]),
                             std::stod(argv[3]), request));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "http_rate: %s\n", error.what());
  return 1;
}
