#include "twinkle/server/http/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "twinkle/base/error_for_test.h"

namespace twinkle::server {
namespace {

TEST(OpenFiles, ConnectionsLeaveFilesForTheRest) {
  EXPECT_EQ(connections_within(1 << 20, 10'000), 10'000);
  EXPECT_EQ(connections_within(10'064, 10'000), 10'000);
  EXPECT_EQ(connections_within(10'063, 10'000), 9'999);
  EXPECT_EQ(connections_within(65, 10'000), 1);
  EXPECT_EQ(error_of([] { connections_within(64, 10'000); }),
            "server: the system lets this process have 64 files open, it needs 64 and one for each "
            "connection; raise that limit (ulimit -n, LimitNOFILE)");
}

TEST(OpenFiles, TheLimitThatAProcessBeganWithBecomesTheHigherOne) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{before.rlim_max / 2, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(raise_limit_of_files(), static_cast<int64_t>(before.rlim_max));
  rlimit after{};
  ::getrlimit(RLIMIT_NOFILE, &after);
  EXPECT_EQ(after.rlim_cur, before.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace twinkle::server
