#include "twinkle/engine/training/split.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace twinkle::engine {
namespace {

int64_t num_tokens(const TrainingOp& op, size_t s) {
  return std::ssize(op.sequences()[s].input_ids);
}

// Reads what append() has written, one part after the other.
class PartsReader {
 public:
  explicit PartsReader(std::span<const float> values) : values_(values) {}

  std::span<const float> take(int64_t count) {
    const auto out = values_.subspan(at_, static_cast<size_t>(count));
    at_ += static_cast<size_t>(count);
    return out;
  }
  std::vector<std::vector<float>> take_rows(std::span<const int64_t> counts) {
    std::vector<std::vector<float>> out;
    for (const int64_t count : counts) {
      const auto row = take(count);
      out.emplace_back(row.begin(), row.end());
    }
    return out;
  }

 private:
  std::span<const float> values_;
  size_t at_ = 0;
};

// How many floats a piece's outputs are.
struct Counts {
  Counts(const OpSlice& piece, Split::Widths widths) {
    const TrainingOp& op = *piece.op;
    scored = op.num_scored(piece.first, piece.last);
    if (op.wants_entropy()) entropies = scored;
    if (op.wants_aux_loss()) aux_losses = static_cast<int64_t>(piece.last - piece.first);
    for (size_t s = piece.first; s < piece.last; ++s) {
      if (op.wants_logits()) logits.push_back(num_tokens(op, s) * widths.vocabulary);
      if (op.wants_embedding()) embeddings.push_back(widths.embedding);
      if (op.wants_routes()) routes.push_back(num_tokens(op, s) * widths.routes);
    }
  }
  int64_t sum() const {
    int64_t out = 1 + scored + entropies + aux_losses;  // 1: whether it is finite
    for (const int64_t n : logits) out += n;
    for (const int64_t n : embeddings) out += n;
    for (const int64_t n : routes) out += n;
    return out;
  }

  int64_t scored = 0, entropies = 0, aux_losses = 0;
  std::vector<int64_t> logits, embeddings, routes;
};

void write(const PieceOutputs& piece, std::vector<float>& to) {
  const auto add = [&](const auto& values) { to.insert(to.end(), values.begin(), values.end()); };
  to.push_back(piece.finite ? 1.0f : 0.0f);
  add(piece.outputs.logprobs);
  add(piece.outputs.entropies);
  add(piece.outputs.aux_losses);
  for (const auto& row : piece.outputs.logits) add(row);
  for (const auto& row : piece.outputs.embeddings) add(row);
  for (const auto& row : piece.outputs.routed_experts) add(row);  // whole numbers, far below 2^24
}

}  // namespace

// Sequences of one rank follow one another: a rank has those whose middle lies in its share of all
// tokens.
Split::Cut Split::cut(std::span<const OpSlice> pieces) const {
  Cut out(static_cast<size_t>(comm_.size()), {pieces.begin(), pieces.end()});
  if (alone()) return out;
  int64_t all = 0, before = 0;
  for (const OpSlice& piece : pieces) {
    for (size_t s = piece.first; s < piece.last; ++s) all += num_tokens(*piece.op, s);
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (auto& theirs : out) theirs[i].first = theirs[i].last;
    for (size_t s = pieces[i].first; s < pieces[i].last; ++s) {
      const int64_t n = num_tokens(*pieces[i].op, s);
      const auto rank = static_cast<size_t>((2 * before + n) * comm_.size() / (2 * all));
      OpSlice& theirs = out[rank][i];
      theirs.first = std::min(theirs.first, s);
      theirs.last = s + 1;
      before += n;
    }
  }
  return out;
}

std::vector<float> Split::gather(const std::vector<float>& values,
                                 std::span<const int64_t> counts) const {
  at::Tensor sent = at::empty({std::ssize(values)}, at::kFloat);
  std::ranges::copy(values, sent.mutable_data_ptr<float>());
  const at::Tensor all = comm_.all_gather(sent, counts);
  return {all.const_data_ptr<float>(), all.const_data_ptr<float>() + all.numel()};
}

Split::Scores Split::gather(size_t index, const Cut& cut, Scores mine) const {
  if (alone()) return mine;
  std::vector<int64_t> counts;
  for (const auto& theirs : cut)
    counts.push_back(theirs[index].op->num_scored(theirs[index].first, theirs[index].last));
  Scores out{.logprobs = gather(mine.logprobs, counts)};
  if (cut[0][index].op->wants_entropy()) out.entropies = gather(mine.entropies, counts);
  return out;
}

std::vector<bool> Split::append(const Cut& cut, std::vector<PieceOutputs> mine,
                                Widths widths) const {
  std::vector<bool> finite(mine.size(), true);
  if (alone()) {
    for (size_t i = 0; i < mine.size(); ++i) {
      finite[i] = mine[i].finite;
      cut[0][i].op->append(std::move(mine[i].outputs), cut[0][i].last);
    }
    return finite;
  }
  std::vector<float> sent;
  for (const PieceOutputs& piece : mine) write(piece, sent);
  std::vector<int64_t> counts;
  for (const auto& theirs : cut) {
    counts.push_back(0);
    for (const OpSlice& piece : theirs) counts.back() += Counts(piece, widths).sum();
  }
  const std::vector<float> all = gather(sent, counts);
  PartsReader reader(all);
  for (const auto& theirs : cut) {
    for (size_t i = 0; i < theirs.size(); ++i) {
      const Counts of(theirs[i], widths);
      if (reader.take(1)[0] == 0) finite[i] = false;
      TrainingOp::Outputs part{.logprobs = reader.take(of.scored),
                               .entropies = reader.take(of.entropies)};
      const auto aux_losses = reader.take(of.aux_losses);
      part.aux_losses.assign(aux_losses.begin(), aux_losses.end());
      part.logits = reader.take_rows(of.logits);
      part.embeddings = reader.take_rows(of.embeddings);
      for (const auto& row : reader.take_rows(of.routes))
        part.routed_experts.emplace_back(row.begin(), row.end());
      if (theirs[i].first < theirs[i].last) theirs[i].op->append(std::move(part), theirs[i].last);
    }
  }
  return finite;
}

std::vector<bool> Split::on_all(const std::vector<bool>& mine) const {
  if (alone()) return mine;
  const std::vector<int64_t> counts(static_cast<size_t>(comm_.size()), std::ssize(mine));
  const std::vector<float> all = gather({mine.begin(), mine.end()}, counts);
  std::vector<bool> out(mine.size(), true);
  for (size_t i = 0; i < all.size(); ++i)
    if (all[i] == 0) out[i % out.size()] = false;
  return out;
}

void Split::give_up(const std::string& why) const noexcept {
  if (!alone()) comm_.close(why);
}

Partials::Partials(const Split& split, lora::Pool& pool, at::ScalarType type, nn::Rows& rows)
    : split_(split), pool_(pool) {
  if (split.alone()) return;
  for (nn::Segment& segment : rows.segments) {
    if (!segment.learn || segment.slot < 0) continue;
    lora::Adapter& adapter = pool.at(segment.slot);
    adapter.pack(type);
    shadows_.push_back(pool.add(adapter.shadow()));
    segment.slot = shadows_.back().slot();
  }
}

namespace {

// False, too, of all weights, whose gradients parallel::TrainedWeights adds up.
bool learns(const OpSlice& piece) {
  return piece.op->tenant().mode() == Mode::kLora && !piece.op->error && !piece.again;
}

// How many elements of a rank's sequences' gradients are of the tensors that an owner has.
int64_t elements_for(std::span<const OpSlice> pieces, std::span<const OpSlice> theirs, int owner) {
  int64_t out = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (!learns(pieces[i])) continue;
    out += static_cast<int64_t>(theirs[i].last - theirs[i].first) *
           pieces[i].op->tenant().owners().num_elements_of(owner);
  }
  return out;
}

}  // namespace

// This rank's sequences' gradients, those of each owner's tensors one after the other.
at::Tensor Partials::for_owners(std::span<const OpSlice> pieces, std::span<const OpSlice> mine,
                                std::span<const int64_t> to) const {
  at::Tensor out = at::empty({std::accumulate(to.begin(), to.end(), int64_t{0})}, at::kFloat);
  float* next = out.mutable_data_ptr<float>();
  for (int owner = 0; owner < std::ssize(to); ++owner) {
    auto shadow = shadows_.begin();
    for (size_t i = 0; i < pieces.size(); ++i) {
      for (size_t s = mine[i].first; s < mine[i].last; ++s, ++shadow) {
        if (!learns(pieces[i])) continue;
        lora::Adapter& partial = pool_.at(shadow->slot());
        for (const size_t k : mine[i].op->tenant().owners().tensors_of(owner)) {
          at::Tensor& grad = partial.grad(k);
          next = std::copy_n(grad.const_data_ptr<float>(), grad.numel(), next);
        }
      }
    }
  }
  return out;
}

void Partials::add(std::span<const OpSlice> pieces, const Split::Cut& cut) const {
  if (split_.alone()) return;
  const int me = split_.comm().rank();
  const std::vector<OpSlice>& mine = split_.mine(cut);
  std::vector<int64_t> to, from;
  for (int r = 0; r < std::ssize(cut); ++r) {
    to.push_back(elements_for(pieces, mine, r));
    from.push_back(elements_for(pieces, cut[static_cast<size_t>(r)], me));
  }
  for (const lora::AdapterRef& shadow : shadows_) pool_.at(shadow.slot()).make_grads();
  at::Tensor sent = for_owners(pieces, mine, to);
  for (const lora::AdapterRef& shadow : shadows_) pool_.at(shadow.slot()).zero_grads();
  // Ranks' sequences follow one another.
  const at::Tensor all = split_.comm().all_to_all(std::exchange(sent, {}), to, from);
  int64_t at = 0;
  for (const OpSlice& piece : pieces) {
    if (!learns(piece)) continue;
    lora::Adapter& adapter = piece.op->tenant().adapter();
    const std::span<const size_t> owned = piece.op->tenant().owners().tensors_of(me);
    adapter.make_grads(owned);
    for (size_t s = piece.first; s < piece.last; ++s) {
      for (const size_t i : owned) {
        const int64_t count = adapter.grad(i).numel();
        adapter.add_grad_of_shadow(i, all.narrow(0, at, count));
        at += count;
      }
    }
  }
}

}  // namespace twinkle::engine
