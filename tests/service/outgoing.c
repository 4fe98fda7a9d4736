/* Preloaded into a process: notes in the file $OUTGOING each address that it connects or sends to
 * over IP, and each name that it looks up. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

static void note(const char* call, const char* text) {
  const char* path = getenv("OUTGOING");
  FILE* file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s %s\n", call, text);
  fclose(file);
}

static void note_address(const char* call, const struct sockaddr* to) {
  char text[INET6_ADDRSTRLEN] = "";
  if (!to) return;
  if (to->sa_family == AF_INET)
    inet_ntop(AF_INET, &((const struct sockaddr_in*)to)->sin_addr, text, sizeof text);
  else if (to->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &((const struct sockaddr_in6*)to)->sin6_addr, text, sizeof text);
  else
    return;
  note(call, text);
}

int connect(int socket, const struct sockaddr* to, socklen_t size) {
  note_address("connect", to);
  int (*next)(int, const struct sockaddr*, socklen_t) = dlsym(RTLD_NEXT, "connect");
  return next(socket, to, size);
}

ssize_t sendto(int socket, const void* bytes, size_t count, int flags, const struct sockaddr* to,
               socklen_t size) {
  note_address("sendto", to);
  ssize_t (*next)(int, const void*, size_t, int, const struct sockaddr*, socklen_t) =
      dlsym(RTLD_NEXT, "sendto");
  return next(socket, bytes, count, flags, to, size);
}

ssize_t sendmsg(int socket, const struct msghdr* message, int flags) {
  note_address("sendmsg", message->msg_name);
  ssize_t (*next)(int, const struct msghdr*, int) = dlsym(RTLD_NEXT, "sendmsg");
  return next(socket, message, flags);
}

int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints,
                struct addrinfo** out) {
  note("getaddrinfo", node ? node : "");
  int (*next)(const char*, const char*, const struct addrinfo*, struct addrinfo**) =
      dlsym(RTLD_NEXT, "getaddrinfo");
  return next(node, service, hints, out);
}
