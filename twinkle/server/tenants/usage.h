// What tenants have used, by key and run: from the ends of operations, which are journalled, so
// that a start knows it again. Used by the service's thread alone.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "twinkle/base/fields.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"

namespace twinkle::server {

// By one operation.
struct Used {
  int64_t trained = 0;    // tokens of forward_backward, with or without gradients
  int64_t prompt = 0;     // tokens of a prompt, once for all of its samples
  int64_t generated = 0;  // tokens
  double seconds = 0;     // its share of the engine's time

  static constexpr auto fields() {
    return std::tuple{field(1, "trained", &Used::trained), field(2, "prompt", &Used::prompt),
                      field(3, "generated", &Used::generated), field(4, "seconds", &Used::seconds)};
  }
};

// What is known before it runs, and what its result adds.
Used used_by(const engine::Operation& operation);
int64_t generated_in(const engine::Result& result);

// By all operations of a run with one key.
struct UsageLine {
  std::string tenant;
  std::string key;  // its id; empty where keys are not asked for
  std::string run;  // or the session, of samplers that are no run's
  int64_t requests = 0;
  Used used;

  static constexpr auto fields() {
    return std::tuple{field(1, "tenant", &UsageLine::tenant), field(2, "key", &UsageLine::key),
                      field(3, "run", &UsageLine::run), field(4, "requests", &UsageLine::requests),
                      field(5, "used", &UsageLine::used)};
  }
};

class Usage {
 public:
  // `request_id` says of which run.
  void add(const std::string& tenant, const std::string& key, const std::string& request_id,
           const Used& used);
  std::vector<UsageLine> lines() const;
  // Instead of all there is.
  void restore(const std::vector<UsageLine>& lines);
  // Sums; of at most so many tenants, those with the most requests, the others together as
  // "(others)".
  std::vector<UsageLine> by_tenant(size_t most) const;

 private:
  std::map<std::tuple<std::string, std::string, std::string>, UsageLine> lines_;
};

}  // namespace twinkle::server
