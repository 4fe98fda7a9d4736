// Where the ranks of a group meet with what their scripts submit: each sends its own and gets what
// all have sent as one operation. Callers' threads.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "twinkle/base/guarded.h"
#include "twinkle/engine/group/group.h"
#include "twinkle/engine/group/joined.h"

namespace twinkle::engine {

class Door {
 public:
  explicit Door(const Group& group) : group_(group) {}  // outlives it

  struct Entry {
    int64_t number;    // 1, 2, ... the same on every rank
    std::string name;  // for errors: "operation 2, step of 'default'"
    Joined joined;
  };
  // Waits until every rank has sent one. Error kInvalid: joined()'s; kInternal: a rank has gone, or
  // has closed its engine.
  Entry enter(const Operation& mine);
  // The last word of this rank: those that still submit are told. Once.
  void close() noexcept;

 private:
  std::vector<std::string> meet(const std::string& place, const std::string& bytes) const;

  const Group& group_;
  Mutex mutex_;
  int64_t number_ GUARDED_BY(mutex_) = 0;
};

}  // namespace twinkle::engine
