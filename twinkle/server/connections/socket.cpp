#include "twinkle/server/connections/socket.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>

namespace twinkle::server {
namespace {

bool is_so(int socket, short events) {
  pollfd asked{.fd = socket, .events = events};
  return ::poll(&asked, 1, 0) > 0;
}

}  // namespace

bool is_gone(int socket) {
  char byte = 0;
  const ssize_t count = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR);
}

bool has_hung_up(int socket) { return is_so(socket, POLLRDHUP); }

bool takes_more(int socket) { return is_so(socket, POLLOUT); }

}  // namespace twinkle::server
