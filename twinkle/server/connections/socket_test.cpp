#include "twinkle/server/connections/socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace twinkle::server {
namespace {

TEST(Socket, TellsWhetherItsPeerIsThereAndReads) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  EXPECT_TRUE(takes_more(ends[0]));
  EXPECT_FALSE(is_gone(ends[0]));
  const std::string text(1 << 16, 'x');
  while (::send(ends[0], text.data(), text.size(), MSG_DONTWAIT) > 0) {
  }
  EXPECT_FALSE(takes_more(ends[0]));
  EXPECT_FALSE(has_hung_up(ends[1]));
  ::close(ends[0]);
  EXPECT_TRUE(has_hung_up(ends[1]));
  EXPECT_FALSE(is_gone(ends[1])) << "what it sent can be read";
  ::close(ends[1]);
}

}  // namespace
}  // namespace twinkle::server
