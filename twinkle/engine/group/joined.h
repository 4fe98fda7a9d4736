// The ranks' submissions as one operation: the sequences, or prompts, of all in the order of ranks,
// so that a loss sees the whole batch. And each rank's part of its result.
#pragma once
#include <string>
#include <vector>

#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"

namespace twinkle::engine {

// For errors: "step of 'default'".
std::string name_of(const Operation& operation);

// Sequences, or prompts, [first, last) of an operation's are a rank's own; of operations without
// any everything is.
struct Part {
  size_t first = 0, last = 0;
};

struct Joined {
  Operation operation;
  Part part;  // for the rank that asks
};

// Error kInvalid, the same on each rank: ranks have submitted different operations. `number`: the
// how manieth it is.
Joined joined(std::vector<Operation> of_ranks, int rank, int64_t number);

// A rank's part of a result: its own sequences' outputs. The loss and the number of tokens are of
// all.
Result part_of(Result result, const Part& part);

}  // namespace twinkle::engine
