// How many sessions and samplers each tenant has. They are kept for good, since a client may come
// back to them at any time, and take memory: so there is a limit, which is no quota but what a
// server bears. Used by the service's thread alone.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "twinkle/base/error.h"
#include "twinkle/base/fields/options.h"

namespace twinkle::server {

struct KeptOptions {
  int64_t max_sessions = 1'000'000;
  int64_t max_samplers = 1'000'000;

  static constexpr auto fields() {
    using O = KeptOptions;
    return std::tuple{
        option("max_sessions", &O::max_sessions, between(1, kMostTokens),
               "sessions of one tenant, also those that have finished, each about half a kilobyte "
               "of memory; one more is refused"),
        option("max_samplers", &O::max_samplers, between(1, kMostTokens),
               "samplers of one tenant, each about a kilobyte of memory; one more is refused")};
  }
};

class Kept {
 public:
  enum class What { kSession, kSampler };

  explicit Kept(const KeptOptions& options) : options_(options) {}

  void set(const KeptOptions& options) { options_ = options; }

  void add(What what, const std::string& owner) { ++counts_[{what, owner}]; }
  // For one more. Error kInvalid: the owner has as many as the limit.
  void require_room(What what, const std::string& owner) const {
    const bool is_session = what == What::kSession;
    const int64_t most = is_session ? options_.max_sessions : options_.max_samplers;
    const auto found = counts_.find({what, owner});
    require(found == counts_.end() || found->second < most, Code::kInvalid,
            "server: this tenant has ", most,
            is_session ? " sessions, max_sessions is " : " samplers, max_samplers is ", most,
            "; use those that are there, or ask the operator for a higher limit");
  }

 private:
  KeptOptions options_;
  std::map<std::pair<What, std::string>, int64_t> counts_;
};

}  // namespace twinkle::server
