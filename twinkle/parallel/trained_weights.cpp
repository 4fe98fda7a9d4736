#include "twinkle/parallel/trained_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "twinkle/base/error.h"

namespace twinkle::parallel {

TrainedWeights::TrainedWeights(model::Decoder& decoder, const Ownership& ownership,
                               mesh::Comm& comm, Shards* shards)
    : decoder_(decoder),
      ownership_(ownership),
      comm_(comm),
      shards_(shards),
      runs_(ownership.runs(comm.rank())),
      masters_(runs_.size()),
      grads_(runs_.size()),
      added_(runs_.size()) {
  const at::NoGradGuard no_grad;
  const Held held = this->held();
  for (const Piece& piece : ownership.pieces()) {
    const Run mine = ownership.run(piece, comm.rank());
    for (const Ownership::Member& member : piece.members)
      masters_[member.weight] = here(held, member, member.at.in(mine))
                                    .to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  }
  decoder.train_all([this](size_t number) { completed(number); });
}

TrainedWeights::~TrainedWeights() { decoder_.freeze(); }

void TrainedWeights::set_grads(std::vector<at::Tensor> grads) { grads_ = std::move(grads); }

void TrainedWeights::zero_grads() {
  for (at::Tensor& grad : grads_) grad.reset();
}

// ---- gradients

void TrainedWeights::completed(size_t number) {
  const at::NoGradGuard no_grad;
  for (const Piece& piece : ownership_.pieces())
    if (piece.number == number) add(piece);
  if (number != decoder_.pieces().front()) return;
  // The embedding's piece ends a pass. Of norms and biases there is a piece for each type.
  for (const Piece& piece : ownership_.pieces())
    if (!piece.number) add(piece);
  agree_on_zeros();
}

void TrainedWeights::add(const Piece& piece) {
  const auto n = static_cast<size_t>(comm_.size());
  std::vector<int64_t> counts(n), begins(n);
  for (size_t r = 0; r < n; ++r) {
    counts[r] = ownership_.run(piece, static_cast<int>(r)).size();
    if (r > 0) begins[r] = begins[r - 1] + counts[r - 1];
  }
  at::Tensor sent = at::zeros({piece.count}, at::kFloat);  // each rank's run after the other
  for (const auto& [weight, at] : piece.members) {
    const at::Tensor grad = decoder_.take_grad(weight);
    if (!grad.defined()) continue;
    added_[weight] = 1;
    const at::Tensor flat = grad.view({-1});
    for (size_t r = 0; r < n; ++r) {
      const Run theirs = ownership_.run(piece, static_cast<int>(r)), both = at.in(theirs);
      if (both.size() > 0)
        sent.narrow(0, begins[r] + both.begin - theirs.begin, both.size())
            .copy_(flat.narrow(0, both.begin - at.begin, both.size()));
    }
  }
  const at::Tensor sum = comm_.reduce_scatter(std::exchange(sent, {}), counts);
  const Run mine = ownership_.run(piece, comm_.rank());
  for (const auto& [weight, at] : piece.members) {
    const Run both = at.in(mine);
    const at::Tensor more = both.size() > 0 ? sum.narrow(0, both.begin - mine.begin, both.size())
                                            : at::empty({0}, at::kFloat);
    if (grads_[weight].defined()) {
      grads_[weight].add_(more);
    } else {
      grads_[weight] = more;
      fresh_.push_back(weight);
    }
  }
}

// A step does not change weights without a gradient on any rank, as on one rank.
void TrainedWeights::agree_on_zeros() {
  const auto n = static_cast<size_t>(comm_.size()), num_weights = added_.size();
  at::Tensor mine = at::empty({std::ssize(added_)}, at::kChar);
  std::ranges::copy(added_, static_cast<char*>(mine.mutable_data_ptr()));
  const at::Tensor all = comm_.all_gather(mine, std::vector<int64_t>(n, mine.numel()));
  const auto* added = static_cast<const char*>(all.const_data_ptr());
  for (const size_t weight : std::exchange(fresh_, {})) {
    bool by_any = false;
    for (size_t r = 0; r < n; ++r) by_any = by_any || added[r * num_weights + weight] != 0;
    if (!by_any) grads_[weight].reset();
  }
  std::ranges::fill(added_, 0);
}

// ---- values

// The parts of the weights that this rank keeps, by name; of those that are not there, all.
TrainedWeights::Held TrainedWeights::held() const { return shards_ ? shards_->held() : Held(); }

// Where the elements `run` of a member lie here.
at::Tensor TrainedWeights::here(const Held& held, const Ownership::Member& member,
                                const Run& run) const {
  if (run.size() == 0) return at::empty({0}, decoder_.dtype());
  const model::NamedWeight& weight = decoder_.weights()[member.weight];
  const auto found = held.find(weight.name);
  if (found == held.end())
    return weight.value->view({-1}).narrow(0, run.begin - member.at.begin, run.size());
  const auto& [values, first, is_part] = found->second;
  return values.narrow(0, run.begin - member.at.begin - first, run.size());
}

void TrainedWeights::share() {
  const at::NoGradGuard no_grad;
  const Held held = this->held();
  for (const Piece& piece : ownership_.pieces()) share(piece, held);
}

void TrainedWeights::share(const Piece& piece, const Held& held) {
  const int n = comm_.size(), me = comm_.rank();
  const Run mine = ownership_.run(piece, me);
  at::ScalarType type = decoder_.dtype();  // the widest of the members'
  for (const Ownership::Member& member : piece.members)
    type = c10::promoteTypes(type, decoder_.weights()[member.weight].value->scalar_type());
  at::Tensor chunk = at::zeros({mine.size()}, type);
  for (const auto& [weight, at] : piece.members) {
    const Run both = at.in(mine);
    if (both.size() > 0)
      chunk.narrow(0, both.begin - mine.begin, both.size()).copy_(masters_[weight]);
  }
  const auto found = held.find(decoder_.weights()[piece.members.front().weight].name);
  const bool is_part = found != held.end() && found->second.is_part;
  // Who has the part that a rank's run is of, on every rank the same.
  const auto hold_alike = [&](int a, int b) {
    return !is_part || a % piece.num_parts == b % piece.num_parts;
  };
  std::vector<int64_t> to, from;
  int64_t num_receivers = 0;
  for (int r = 0; r < n; ++r) {
    const bool is_told = hold_alike(r, me);
    num_receivers += is_told ? 1 : 0;
    to.push_back(is_told ? mine.size() : 0);
    from.push_back(is_told ? ownership_.run(piece, r).size() : 0);
  }
  const at::Tensor all =
      num_receivers == 1 ? chunk : comm_.all_to_all(chunk.repeat({num_receivers}), to, from);
  int64_t first = 0;  // first of a rank's elements
  for (int r = 0; r < n; ++r) {
    if (!hold_alike(r, me)) continue;
    const Run theirs = ownership_.run(piece, r);
    for (const Ownership::Member& member : piece.members) {
      const Run both = member.at.in(theirs);
      if (both.size() > 0)
        here(held, member, both)
            .copy_(all.narrow(0, first + both.begin - theirs.begin, both.size()));
    }
    first += theirs.size();
  }
}

void TrainedWeights::assign(const std::vector<at::Tensor>& runs) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < runs.size(); ++i) masters_[i].copy_(runs[i]);
  share();
}

at::Tensor TrainedWeights::whole(size_t weight, const at::Tensor& run) const {
  std::vector<Run> runs;
  std::vector<int64_t> counts;
  for (int r = 0; r < comm_.size(); ++r) {
    runs.push_back(ownership_.runs(r)[weight]);
    counts.push_back(runs.back().size());
  }
  const at::Tensor all = comm_.all_gather(run, counts);
  at::Tensor out = at::empty(decoder_.weights()[weight].value->sizes(), at::kFloat);
  int64_t first = 0;
  for (const Run& r : runs) {
    if (r.size() > 0)
      out.view({-1}).narrow(0, r.begin, r.size()).copy_(all.narrow(0, first, r.size()));
    first += r.size();
  }
  return out;
}

}  // namespace twinkle::parallel
