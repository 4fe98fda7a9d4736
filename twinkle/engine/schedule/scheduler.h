// Scheduler of training batches: deficit round robin by tokens over the ordered queues of many
// tenants (base/fair_share.h), within strict priorities. Two tenants of one priority that always
// have sequences to run differ, in tokens per weight, by at most the sum over both of (its longest
// piece + the longest sequence of all) / weight; a piece is a sequence, or an operation that joins.
// An operation may take several batches; a tenant's next one begins when it has ended, or joins the
// batch that completes it, when both are of a kind that may and it fits whole.
// docs/decisions/0011-windows.md proves the constant, 0005-scheduler.md says why it is done so.
// Plain data: no model, no thread, no clock. The same calls give the same batches.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "twinkle/base/fair_share.h"

namespace twinkle::engine {

struct Share {
  double weight = 1.0;   // > 0; of the tokens, among tenants of one priority
  int32_t priority = 0;  // higher first
};

inline constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Memory for the state of tenants whose operations begin in a batch. One always may, when none has
// begun.
struct BatchRoom {
  int64_t bytes = kNoLimit;
  std::function<int64_t(const std::string& tenant)> bytes_of{};  // empty: none takes any
};

// Sequences [first, last) of an operation.
struct Slice {
  int64_t id;
  size_t first, last;
  int64_t num_tokens = 0;
};

// A call that throws, for lack of memory, has changed no batch; push() may leave a tenant without
// operations, as set_share() makes one.
class Scheduler {
 public:
  // Tokens of a batch, at least 1. A longer sequence is a batch of its own.
  explicit Scheduler(int64_t token_budget) : budget_(token_budget) {}

  void set_share(const std::string& tenant, Share share);
  // Back to the default; the count of tokens, and the account, to zero.
  void forget(const std::string& tenant);
  Share share(const std::string& tenant) const;

  // `tokens` of each sequence, at least one each; without sequences the operation runs by itself.
  // `joins`: it may run in one batch with its tenant's operations before and after it.
  void push(const std::string& tenant, int64_t id, std::vector<int64_t> tokens, bool joins = false);
  // The operation has ended, or is not wanted any more. False: it is not here.
  bool remove(const std::string& tenant, int64_t id);
  // All its sequences run once more; `alone`: in batches that hold nothing else.
  void rewind(const std::string& tenant, int64_t id, bool alone);

  // Operations without sequences that are first in their tenant's order, the oldest first.
  std::vector<int64_t> heads() const;
  // The next batch, empty when nothing can run. `begin`: operations that have not run yet may, of
  // tenants that `room` is enough for.
  std::vector<Slice> next_batch(bool begin = true, const BatchRoom& room = {});
  bool has_batch(bool begin = true) const;

  // Operations that have begun and not ended, other than this tenant's.
  bool others_have_begun(const std::string& tenant) const;
  int64_t num_tokens(const std::string& tenant) const;  // in batches so far

 private:
  struct Entry {
    int64_t id;
    std::vector<int64_t> tokens;
    bool joins;
    int64_t total = 0, longest = 0;  // tokens: of all, of a sequence
    size_t next = 0;
    bool begun = false, alone = false;
  };
  struct Tenant {
    bool known = false;  // from set_share to forget
    int32_t priority = 0;
    std::deque<Entry> entries;
    Account account;  // in tokens; its last turn: when it ran a sequence, or came back with some
    int64_t num_tokens = 0;

    bool can_run(bool begin) const;
  };
  struct Candidate;
  struct Filling;

  int64_t budget_;
  uint64_t turn_ = 0;
  std::map<std::string, Tenant> tenants_;
};

}  // namespace twinkle::engine
