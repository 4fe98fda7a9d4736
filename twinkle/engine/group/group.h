// The ranks that run one engine together, and how they talk. docs/decisions/0019-groups.md.
#pragma once
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "twinkle/mesh/channel.h"
#include "twinkle/mesh/watch.h"

namespace twinkle::engine {

// Groups of the same ranks, one for each thread of a rank that talks. Rank 0 leads.
struct Group {
  std::unique_ptr<mesh::Channel> door;     // callers' threads: what each rank submits
  std::unique_ptr<mesh::Channel> control;  // from the leader to its followers, and their answers
  std::unique_ptr<mesh::Channel> data;     // within a call: a Comm, of what ranks compute
  std::unique_ptr<mesh::Channel> saves;    // between the threads that write: how each has written
  std::shared_ptr<mesh::Watch> watch;      // that the channels ask; null in tests
  // A Comm of those among the ranks that hold the base's weights together, each a part; null: each
  // holds all of them.
  std::unique_ptr<mesh::Channel> base = nullptr;

  int rank() const { return control->rank(); }
  int size() const { return control->size(); }
  // The first error closes all of them: ranks that wait on any of them are woken.
  void close(const std::string& why) const noexcept;
};

// Runs one call on a rank and compares how it ended on all: the same on each, or the group is
// broken. Returns the call's exception, or null. Error kInternal: broken, with each rank's cause.
// `outcome`: what the call decided, which must be the same on all.
std::exception_ptr agree(mesh::Channel& control, const std::function<std::string()>& call);

// An error of the group with the operation that it has ended, by its name; others as they are.
std::exception_ptr named(std::exception_ptr error, const std::string& operation);

}  // namespace twinkle::engine
