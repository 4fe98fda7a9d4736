#include "twinkle/engine/training/training.h"

#include <algorithm>

#include "twinkle/base/error.h"
#include "twinkle/engine/memory/text_of_error.h"
#include "twinkle/engine/training/split.h"

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

// Every rank finds what an Error reports. Anything else, such as a shortage of memory, is of this
// rank alone: the others go on with the operation, and wait for this rank's part of it.
void Training::require_alike(const std::exception_ptr& error) const {
  if (with_.split.alone()) return;
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
  } catch (const std::exception& own) {
    with_.split.give_up(text_of(own));
    throw;
  }
}

std::set<const Tenant*> Training::tenants() const {
  std::set<const Tenant*> out;
  for (const auto& [id, op] : running_) out.insert(&op->tenant());
  return out;
}

void Training::run_batch(std::span<const Work> batch, const Stop& stop, BatchOutcome& outcome) {
  std::vector<OpSlice> forwards, backwards, kept;
  std::map<const Tenant*, int64_t> num_backwards;
  for (const Work& work : batch) {
    try {
      TrainingOp& op = begun(work);
      if (op.derives() && kept_.has(work.id)) {
        kept.push_back({&op, work.first, work.last, true});
        continue;
      }
      if (!op.learns(work.first, work.last)) {
        forwards.push_back({&op, work.first, work.last});
        continue;
      }
      const int64_t later = num_backwards[&op.tenant()]++;
      if (later > 0 && (op.tenant().trains_head() || op.tenant().shares_factors())) {
        // The head adds its gradients before it is known whether the loss is finite; experts add
        // theirs to what they share when an operation ends. joins() goes by the newest Create,
        // which may have failed.
        outcome.rewound.push_back({work.id, false});
        running_.erase(work.id);
      } else {
        backwards.push_back({&op, work.first, work.last, true, later});
      }
    } catch (...) {
      require_alike(std::current_exception());
      outcome.ended.push_back({work.id, std::current_exception()});
    }
  }
  // Passes of their own, so that a forward costs no backward. None changes what another reads.
  run_kept(kept, stop, outcome);
  run_forwards(forwards, stop, outcome);
  if (backwards.empty()) return;
  if (const int64_t limit = with_.decoder.activation_limit(); limit > 0 && kept_.num_bytes() > 0)
    free_kept(limit - kept_.num_bytes(backwards), outcome);
  ++outcome.num_passes;
  pass(backwards, [&](auto pieces) { backward_pass(pieces, with_, stop); }, outcome);
}

void Training::run_forwards(std::span<OpSlice> pieces, const Stop& stop, BatchOutcome& outcome) {
  std::vector<OpSlice> shared;
  for (OpSlice& piece : pieces) {
    try {
      // Several ranks share every pass.
      if (!with_.split.alone() || !kept_.admit(piece)) {
        shared.push_back(piece);
        continue;
      }
    } catch (...) {
      piece.op->error = std::current_exception();
      finish(*piece.op, outcome);
      continue;
    }
    ++outcome.num_passes;
    pass({&piece, 1}, [&](auto own) { kept_.forward(own.front(), stop); }, outcome);
  }
  if (shared.empty()) return;
  ++outcome.num_passes;
  pass(shared, [&](auto all) { forward_pass(all, with_, stop); }, outcome);
}

// The forwards were counted when they ran.
void Training::run_kept(std::span<OpSlice> pieces, const Stop& stop, BatchOutcome& outcome) {
  for (OpSlice& piece : pieces) {
    // Where another's has failed meanwhile, for want of memory, this one begins again.
    if (!kept_.has(piece.op->id()) || !kept_.due(piece)) continue;
    pass({&piece, 1}, [&](auto own) { kept_.backward(own.front(), stop); }, outcome);
  }
}

void Training::pass(std::span<OpSlice> pieces, const Run& run, BatchOutcome& outcome) {
  std::vector<std::vector<OpSlice>> overflowed;
  try {
    run(pieces);
    overflowed = overflows(pieces);
  } catch (const model::Stopped&) {
    throw;  // all are cancelled
  } catch (const std::exception& error) {
    if (!with_.split.alone()) {  // the others wait for this rank, and know nothing of its error
      with_.split.give_up(text_of(error));
      throw;
    }
    return retry_alone(pieces, std::current_exception(), outcome);
  }
  const auto has_overflowed = [&](const Tenant& tenant) {
    return std::ranges::any_of(
        overflowed, [&](const auto& theirs) { return &theirs.front().op->tenant() == &tenant; });
  };
  for (const OpSlice& piece : pieces) {
    if (has_overflowed(piece.op->tenant())) continue;
    if (piece.again) {
      outcome.rewound.push_back({piece.op->id(), false});
      running_.erase(piece.op->id());
    } else {
      finish(*piece.op, outcome);
    }
  }
  for (const auto& theirs : overflowed)
    retry_alone(theirs, not_finite(theirs.front().op->tenant()), outcome);
}

// By tenants, in the order of their first pieces, which all ranks know: the pieces of those whose
// sums of gradients have left the finite numbers.
std::vector<std::vector<OpSlice>> Training::overflows(std::span<const OpSlice> pieces) const {
  std::vector<std::vector<OpSlice>> all, out;
  for (const OpSlice& piece : pieces) {
    if (!piece.learns) continue;
    const auto theirs = std::ranges::find_if(
        all, [&](const auto& some) { return &some.front().op->tenant() == &piece.op->tenant(); });
    if (theirs == all.end())
      all.push_back({piece});
    else
      theirs->push_back(piece);
  }
  std::vector<bool> finite;
  for (const auto& theirs : all) finite.push_back(theirs.front().op->tenant().gradients_finite());
  if (!all.empty()) finite = with_.split.on_all(finite);
  for (size_t i = 0; i < all.size(); ++i)
    if (!finite[i]) out.push_back(std::move(all[i]));
  return out;
}

// The arithmetic itself failed, by a shortage of memory or sums beyond float32. An operation that
// was alone has caused it; otherwise each begins again, alone, so that only that one fails.
// Recordings and kept passes hold memory: they are freed first, and no operation is blamed.
void Training::retry_alone(std::span<const OpSlice> pieces, std::exception_ptr error,
                           BatchOutcome& outcome) {
  bool freed = with_.graphs.forget();
  for (const OpSlice& piece : pieces) freed = kept_.forget(piece.op->id()) || freed;
  freed = free_kept(0, outcome) || freed;
  for (const OpSlice& piece : pieces) {
    TrainingOp& op = *piece.op;
    if (!freed && pieces.size() == 1) op.error = error;
    if (op.error) {
      finish(op, outcome);
    } else {
      op.keeps = false;
      op.restore();
      outcome.rewound.push_back({op.id(), true});
    }
  }
}

// The newest operations first, until all keep no more than `most` bytes; below 0: nothing. One that
// was learning learns again from its first sequence. False: there was nothing to free.
bool Training::free_kept(int64_t most, BatchOutcome& outcome) {
  bool freed = false;
  while (kept_.num_bytes() > std::max<int64_t>(most, 0)) {
    TrainingOp& op = *running_.at(kept_.newest());
    freed = kept_.forget(op.id());
    op.keeps = false;
    if (!op.derives()) continue;
    op.restore();
    const bool is_told = std::ranges::any_of(
        outcome.rewound, [&](const Rewound& rewound) { return rewound.id == op.id(); });
    if (!is_told) outcome.rewound.push_back({op.id(), false});
  }
  return freed;
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
    require_alike(std::current_exception());
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
  kept_.forget(id);
  it->second->restore();
  running_.erase(it);
  return true;
}

}  // namespace twinkle::engine
