#include "twinkle/cli/serve/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include "twinkle/base/error_for_test.h"
#include "twinkle/io/limit_for_test.h"

namespace twinkle::cli {
namespace {

TEST(OpenFiles, ConnectionsLeaveFilesForTheRest) {
  EXPECT_EQ(connections_within(1 << 20, 10'000), 10'000);
  EXPECT_EQ(connections_within(10'064, 10'000), 10'000);
  EXPECT_EQ(connections_within(10'063, 10'000), 9'999);
  EXPECT_EQ(connections_within(65, 10'000), 1);
  EXPECT_EQ(error_of([] { connections_within(64, 10'000); }),
            "cli: the system lets this process have 64 files open, it needs 64 and one for each "
            "connection; raise that limit (ulimit -n, LimitNOFILE)");
}

TEST(OpenFiles, TheLimitThatAProcessBeganWithBecomesTheHigherOne) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const LimitForTest low(RLIMIT_NOFILE, limit.rlim_max / 2);
  EXPECT_EQ(raise_limit_of_files(), static_cast<int64_t>(limit.rlim_max));
  ::getrlimit(RLIMIT_NOFILE, &limit);
  EXPECT_EQ(limit.rlim_cur, limit.rlim_max);
}

}  // namespace
}  // namespace twinkle::cli
