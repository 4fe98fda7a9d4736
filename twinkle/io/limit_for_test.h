// For tests: a limit of the process (setrlimit) for as long as this lives.
#pragma once
#include <sys/resource.h>

namespace twinkle {

class LimitForTest {
 public:
  LimitForTest(__rlimit_resource_t resource, rlim_t soft) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    const rlimit tight{soft, before_.rlim_max};
    ::setrlimit(resource_, &tight);
  }
  ~LimitForTest() { ::setrlimit(resource_, &before_); }
  LimitForTest(const LimitForTest&) = delete;
  LimitForTest& operator=(const LimitForTest&) = delete;

 private:
  __rlimit_resource_t resource_;
  rlimit before_{};
};

}  // namespace twinkle
