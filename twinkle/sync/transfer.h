// Carries a plan out: sends and receives its messages, as many at a time as fill two buckets.
#pragma once
#include <ATen/core/Tensor.h>

#include <vector>

#include "twinkle/mesh/comm.h"
#include "twinkle/sync/plan.h"

namespace twinkle::sync {

// One rank's share of a tensor: the slices that it holds, or has room for, one after the other.
struct Local {
  at::Tensor values;  // contiguous; none: this rank has no part of it
  std::vector<Slice> slices;
};

// The bytes of this rank's part of a piece, where they lie: [n] uint8. `locals`: by the number of
// the plan's tensors. Error kInternal: it has no such part.
at::Tensor bytes_of(const Piece& piece, const Plan& plan, const std::vector<Local>& locals);

// `bucket_bytes`: that of the plan. Returns the bytes that this rank has sent or received. Error
// kInternal: as of Comm; of a lack of memory the others hear when the group is closed, which is the
// caller's to do.
int64_t transfer(mesh::Comm& comm, const Plan& plan, const std::vector<Local>& locals,
                 int64_t bucket_bytes);

}  // namespace twinkle::sync
