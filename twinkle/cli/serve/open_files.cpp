#include "twinkle/cli/serve/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "twinkle/base/error.h"

namespace twinkle::cli {

int64_t raise_limit_of_files() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  constexpr rlim_t kMost = std::numeric_limits<int64_t>::max();
  return static_cast<int64_t>(std::min(limit.rlim_cur, kMost));
}

int64_t connections_within(int64_t files, int64_t wanted) {
  require(files > kOtherFiles, Code::kInvalid, "cli: the system lets this process have ", files,
          " files open, it needs ", kOtherFiles,
          " and one for each connection; raise that limit (ulimit -n, LimitNOFILE)");
  return std::min(wanted, files - kOtherFiles);
}

}  // namespace twinkle::cli
