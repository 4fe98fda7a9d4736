// A server on a Unix socket.
#include "twinkle/server/connections/unix_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>

#include "twinkle/base/error_for_test.h"
#include "twinkle/server/http/server_for_test.h"

namespace twinkle::server {
namespace {

namespace fs = std::filesystem;

class UnixSocketTest : public HttpServerTest {
 protected:
  UnixSocketTest() {
    std::string pattern = testing::TempDir() + "socket-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ / "it.sock";
    handle_ = [](const Request& request, const Reply& reply) { reply({.body = request.peer}); };
  }
  ~UnixSocketTest() override { fs::remove_all(folder_); }

  HttpOptions options(const std::string& address = "none") const {
    return {.address = address, .unix_socket = path_};
  }
  std::string refused() {
    return invalid_of([&] { HttpServer server(options(), {}); });
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(UnixSocketTest, ServesItsOwnUserWithoutAPortAndGoesWithTheServer) {
  start(options());
  EXPECT_EQ(port(), 0);
  struct stat found{};
  ASSERT_EQ(::stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode, S_IFSOCK | 0600u);
  Peer peer(path_);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(peer.ask(post("/", "x")).ends_with("\r\n\r\nunix"));
  server_->drain(std::chrono::seconds(20));
  EXPECT_FALSE(Peer(path_).connected());
  server_.reset();
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(UnixSocketTest, ServesItBesideAPort) {
  start(options("127.0.0.1"));
  EXPECT_TRUE(Peer(path_).ask(post("/", "")).ends_with("unix"));
  EXPECT_TRUE(Peer(port()).ask(post("/", "")).ends_with("127.0.0.1"));
}

TEST_F(UnixSocketTest, ReplacesADeadOneAndLeavesALivingOneAlone) {
  {
    const int dead = ::socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un at{.sun_family = AF_UNIX};
    path_.copy(at.sun_path, path_.size());
    ASSERT_EQ(::bind(dead, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    ::listen(dead, 1);
    ::close(dead);  // its file stays
  }
  start(options());
  EXPECT_EQ(refused(), "server: a server listens on unix_socket '" + path_ +
                           "' already; end it, or give another --unix-socket");
  EXPECT_TRUE(Peer(path_).ask(post("/", "")).ends_with("unix"));
  fs::remove(path_);
  std::ofstream(path_) << "another's";
  server_.reset();
  EXPECT_TRUE(fs::exists(path_)) << "it is not its own";
}

TEST_F(UnixSocketTest, PlacesThatCannotBeAreNamed) {
  std::ofstream(path_) << "mine";
  EXPECT_EQ(refused(), "server: unix_socket '" + path_ +
                           "' is there and no socket; remove it, or give another path");
  EXPECT_TRUE(fs::exists(path_));
  path_ = folder_ / "none" / "it.sock";
  EXPECT_EQ(refused(), "server: unix_socket '" + path_ + "' is in no folder: make " +
                           (folder_ / "none").string() + ", or give another path");
  path_ = folder_ / std::string(100, 'x');
  EXPECT_EQ(refused(), "server: unix_socket '" + path_ + "' has " + std::to_string(path_.size()) +
                           " bytes, it may have 107; give a shorter path");
  path_ = "";
  EXPECT_EQ(refused(),
            "server: host is 'none', and unix_socket is '': give one of them to listen on");
}

}  // namespace
}  // namespace twinkle::server
