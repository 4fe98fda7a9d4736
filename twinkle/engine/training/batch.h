// One pass over the decoder for sequences of several operations, packed. Each sequence is a unit of
// its own: its numbers and its gradients' partial sums have the same bits in any company, and
// partial sums are added in the order of the tenant's submissions. The engine's thread's alone.
#pragma once
#include <atomic>
#include <memory>
#include <span>

#include "twinkle/engine/training/training_op.h"
#include "twinkle/lora/train_graphs.h"
#include "twinkle/model/decoder.h"

namespace twinkle::engine {

// Sequences [first, last) of an operation, at most one piece of each in a pass; those of one tenant
// in the order of its submissions.
struct OpSlice {
  TrainingOp* op;
  size_t first, last;
  bool learns = false;  // takes a backward pass
  int64_t later = 0;    // number of ForwardBackwards of its tenant before it in the pass
  bool again = false;   // set by backward_pass: one of those failed, this one added nothing
};

// The error of a tenant whose numbers are not finite; bad_alloc when there is no memory for it.
std::exception_ptr not_finite(const Tenant& tenant) noexcept;

// Becomes true when a pass is not wanted any more; model::Stopped is thrown then.
using Stop = std::atomic<bool>;

class Split;

// The parts that a pass works with. All outlive it.
struct PassContext {
  model::Decoder& decoder;
  lora::Pool& pool;
  lora::TrainGraphs& graphs;
  const Split& split;  // the cut of its sequences
};

// The pieces' operations keep their rows. Any other exception is one of the arithmetic.
void forward_pass(std::span<OpSlice> pieces, const PassContext& with, const Stop& stop);

// The same, and their gradients are added to their tenants'. A piece whose numbers are not finite
// gets `op->error` and adds nothing; so does one that completes its operation with a loss that
// can't be. What throws may leave some of the gradients added.
void backward_pass(std::span<OpSlice> pieces, const PassContext& with, const Stop& stop);

struct PackedBatch;

// A forward pass of an operation's sequences [first, last) that waits for its backward.
struct KeptPass {
  size_t first, last;
  int64_t bytes;  // bytes of activations
  std::shared_ptr<PackedBatch> packed;
};

// backward_pass in two halves, of one piece on one rank: as forward_pass, but that the activations
// are kept; and, once the operation's derivative is known, the rest.
KeptPass keep_pass(OpSlice& piece, const PassContext& with, const Stop& stop);
void backward_kept(TrainingOp& op, const KeptPass& kept, const PassContext& with, const Stop& stop);

}  // namespace twinkle::engine
