#include "twinkle/cli/run/python_module.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "twinkle/base/error.h"

namespace twinkle::cli {
namespace {

using Clock = std::chrono::steady_clock;

int left_of(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

// True once the socket can be read from or written to, or is at its end.
bool wait_for(int socket, short events, Clock::time_point end) {
  pollfd one{.fd = socket, .events = events, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&one, 1, left_of(end));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

}  // namespace

PythonModule::PythonModule(std::vector<std::string> arguments, Answers answers) {
  const char* found = std::getenv("TWINKLE_PYTHON");
  const std::string program = found ? found : "python3";
  // -P: no file of the folder that the command runs in is imported.
  arguments.insert(arguments.begin(), {program, "-P", "-m"});
  arguments[3].insert(0, "twinkle.");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  std::array<int, 2> ends{};
  require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0, Code::kInternal,
          "cli: cannot create a socket for ", program);
  socket_.reset(ends[0]);
  child_ = ::fork();
  if (child_ == 0) {
    ::signal(SIGINT, SIG_IGN);
    ::signal(SIGHUP, SIG_IGN);
    ::prctl(PR_SET_PDEATHSIG, SIGTERM);
    ::dup2(ends[1], STDIN_FILENO);
    ::dup2(answers == Answers::kLines ? ends[1] : STDERR_FILENO, STDOUT_FILENO);
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  ::close(ends[1]);
  require(child_ > 0, Code::kInternal, "cli: cannot start ", program);
}

PythonModule::~PythonModule() {
  if (child_ <= 0) return;
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

bool PythonModule::send(std::string_view text, std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  while (!text.empty()) {
    if (!wait_for(socket_.get(), POLLOUT, end)) return false;
    const ssize_t n = ::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

std::optional<std::string> PythonModule::receive(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  std::array<char, 4096> chunk{};
  for (size_t line_end = 0; (line_end = read_.find('\n')) == read_.npos;) {
    if (!wait_for(socket_.get(), POLLIN, end)) return std::nullopt;
    const ssize_t n = ::recv(socket_.get(), chunk.data(), chunk.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    read_.append(chunk.data(), static_cast<size_t>(n));
  }
  const size_t size = read_.find('\n');
  std::string line = read_.substr(0, size);
  read_.erase(0, size + 1);
  return line;
}

int PythonModule::finish(std::chrono::milliseconds limit) {
  if (child_ <= 0) return -1;
  ::shutdown(socket_.get(), SHUT_WR);
  const auto end = Clock::now() + limit;
  int status = 0;
  pid_t ended = 0;
  // Its end closes the socket, whatever it has answered.
  while ((ended = ::waitpid(child_, &status, WNOHANG)) == 0 && left_of(end) > 0) {
    std::array<char, 4096> chunk{};
    const auto soon = std::min(end, Clock::now() + std::chrono::milliseconds(20));
    if (wait_for(socket_.get(), POLLIN, soon) &&
        ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT) == 0)
      ::poll(nullptr, 0, 1);  // between the closed socket and the end
  }
  if (ended == 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, &status, 0);
  }
  child_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace twinkle::cli
