#include "twinkle/engine/execute/training.h"

#include "twinkle/base/error.h"

namespace twinkle::engine {

TrainingOp& Training::begun(const Work& work) {
  auto& op = running_[work.id];
  if (!op) {
    try {
      op = std::make_unique<TrainingOp>(work.id, tenant_(tenant_of(*work.operation)),
                                        *work.operation);
    } catch (...) {
      running_.erase(work.id);
      throw;
    }
  }
  return *op;
}

std::set<const Tenant*> Training::tenants() const {
  std::set<const Tenant*> out;
  for (const auto& [id, op] : running_) out.insert(&op->tenant());
  return out;
}

void Training::run_batch(std::span<const Work> batch, const Stop& stop, BatchOutcome& outcome) {
  std::vector<OpSlice> forwards, backwards;
  std::map<const Tenant*, int64_t> num_backwards;
  for (const Work& work : batch) {
    try {
      TrainingOp& op = begun(work);
      if (!op.learns(work.first, work.last)) {
        forwards.push_back({&op, work.first, work.last});
        continue;
      }
      const int64_t later = num_backwards[&op.tenant()]++;
      if (later > 0 && op.tenant().trains_head()) {
        // The head adds its gradients before it is known whether the loss is finite.
        outcome.rewound.push_back({work.id, false});
        running_.erase(work.id);
      } else {
        backwards.push_back({&op, work.first, work.last, true, later});
      }
    } catch (...) {
      outcome.ended.push_back({work.id, std::current_exception()});
    }
  }
  // Two passes, so that a forward costs no backward. Neither changes what the other reads.
  pass(forwards, [&](auto pieces) { forward_pass(pieces, decoder_, stop); }, outcome);
  pass(backwards, [&](auto pieces) { backward_pass(pieces, decoder_, graphs_, stop); }, outcome);
}

void Training::pass(std::span<OpSlice> pieces, const Run& run, BatchOutcome& outcome) {
  if (pieces.empty()) return;
  ++outcome.num_passes;
  std::map<Tenant*, std::vector<OpSlice>> overflowed;
  try {
    run(pieces);
    for (const OpSlice& piece : pieces) {
      if (piece.learns) overflowed[&piece.op->tenant()].push_back(piece);
    }
    std::erase_if(overflowed, [](const auto& of) { return of.first->gradients_finite(); });
  } catch (const model::Stopped&) {
    throw;  // all are cancelled
  } catch (...) {
    return retry_alone(pieces, std::current_exception(), outcome);
  }
  for (const OpSlice& piece : pieces) {
    if (overflowed.contains(&piece.op->tenant())) continue;
    if (piece.again) {
      outcome.rewound.push_back({piece.op->id(), false});
      running_.erase(piece.op->id());
    } else {
      finish(*piece.op, outcome);
    }
  }
  for (const auto& [tenant, theirs] : overflowed) retry_alone(theirs, not_finite(*tenant), outcome);
}

// The arithmetic itself failed, by a shortage of memory or sums beyond float32. An operation that
// was alone has caused it; otherwise each begins again, alone, so that only that one fails.
// Recordings hold memory: they are freed first, and no operation is blamed.
void Training::retry_alone(std::span<const OpSlice> pieces, std::exception_ptr error,
                           BatchOutcome& outcome) {
  const bool known = !graphs_.forget() && pieces.size() == 1;
  for (const OpSlice& piece : pieces) {
    TrainingOp& op = *piece.op;
    if (known) op.error = error;
    if (op.error) {
      finish(op, outcome);
    } else {
      op.restore();
      outcome.rewound.push_back({op.id(), true});
    }
  }
}

void Training::finish(TrainingOp& op, BatchOutcome& outcome) {
  try {
    if (!op.error && op.complete()) {
      if (op.forward()) {
        op.finish();
      } else if (!op.derives()) {
        op.prepare();
        outcome.rewound.push_back({op.id(), false});
        return;
      }
    }
  } catch (...) {
    op.error = std::current_exception();
  }
  if (!op.error && !op.complete()) return;
  outcome.ended.push_back({op.id(), op.error});
  if (op.error) undo(op.id());
}

ForwardResult Training::commit(int64_t id) {
  const auto it = running_.extract(id);
  TrainingOp& op = *it.mapped();
  if (!op.forward()) op.tenant().count(op.result().num_tokens);
  return std::move(op).result();
}

bool Training::undo(int64_t id) {
  const auto it = running_.find(id);
  if (it == running_.end()) return false;
  it->second->restore();
  running_.erase(it);
  return true;
}

}  // namespace twinkle::engine
