#include "twinkle/engine/training/kept_passes.h"

namespace twinkle::engine {
namespace {

nn::Rows rows_of(const TrainingOp& op, size_t first, size_t last) {
  nn::Rows out;
  for (size_t s = first; s < last; ++s)
    out.add(std::ssize(op.sequences()[s].input_ids), {.slot = op.tenant().slot()});
  return out;
}

}  // namespace

bool KeptPasses::admit(const OpSlice& piece) {
  TrainingOp& op = *piece.op;
  if (op.forward() || !op.keeps) return false;
  const int64_t bytes = num_bytes(std::vector<OpSlice>{{&op, 0, op.sequences().size()}});
  const int64_t limit = with_.decoder.activation_limit();
  const auto kept = of_.find(op.id());
  const int64_t others = num_bytes_ - (kept == of_.end() ? 0 : kept->second.bytes);
  op.keeps = limit == 0 || others + bytes <= limit;
  if (op.keeps)
    resize(of_[op.id()], bytes);
  else
    forget(op.id());
  return op.keeps;
}

void KeptPasses::forward(OpSlice& piece, const Stop& stop) {
  of_.at(piece.op->id()).passes.push_back(keep_pass(piece, with_, stop));
}

bool KeptPasses::due(const OpSlice& piece) const {
  return of_.at(piece.op->id()).passes.front().last <= piece.last;
}

void KeptPasses::backward(OpSlice& piece, const Stop& stop) {
  while (!piece.op->error && has(piece.op->id()) && due(piece)) {
    Kept& kept = of_.at(piece.op->id());
    const KeptPass pass = std::move(kept.passes.front());
    kept.passes.pop_front();
    if (kept.passes.empty())
      forget(piece.op->id());
    else
      resize(kept, kept.bytes - pass.bytes);
    backward_kept(*piece.op, pass, with_, stop);
  }
}

bool KeptPasses::forget(int64_t id) {
  const auto kept = of_.extract(id);
  if (!kept) return false;
  num_bytes_ -= kept.mapped().bytes;
  return true;
}

int64_t KeptPasses::num_bytes(std::span<const OpSlice> pieces) const {
  int64_t out = 0;
  for (const OpSlice& piece : pieces)
    out += with_.decoder.activation_bytes({.rows = rows_of(*piece.op, piece.first, piece.last)});
  return out;
}

void KeptPasses::resize(Kept& kept, int64_t bytes) {
  num_bytes_ += bytes - kept.bytes;
  kept.bytes = bytes;
}

}  // namespace twinkle::engine
