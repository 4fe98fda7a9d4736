#include "twinkle/engine/training/split.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace twinkle::engine {
namespace {

int64_t num_tokens(const TrainingOp& op, size_t s) {
  return std::ssize(op.sequences()[s].input_ids);
}

// Reads what append() has written, one part after the other.
class Reader {
 public:
  explicit Reader(std::span<const float> values) : values_(values) {}

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
    for (size_t s = piece.first; s < piece.last; ++s) {
      if (op.wants_logits()) logits.push_back(num_tokens(op, s) * widths.vocabulary);
      if (op.wants_embedding()) embeddings.push_back(widths.embedding);
    }
  }
  int64_t sum() const {
    int64_t out = 1 + scored + entropies;  // 1: whether it is finite
    for (const int64_t n : logits) out += n;
    for (const int64_t n : embeddings) out += n;
    return out;
  }

  int64_t scored = 0, entropies = 0;
  std::vector<int64_t> logits, embeddings;
};

void write(const PieceOutputs& piece, std::vector<float>& to) {
  const auto add = [&](const auto& values) { to.insert(to.end(), values.begin(), values.end()); };
  to.push_back(piece.finite ? 1.0f : 0.0f);
  add(piece.outputs.logprobs);
  add(piece.outputs.entropies);
  for (const auto& row : piece.outputs.logits) add(row);
  for (const auto& row : piece.outputs.embeddings) add(row);
}

}  // namespace

// Sequences of one rank follow one another: a rank has those whose middle lies in its share of all
// tokens.
std::vector<OpSlice> Split::of_rank(std::span<const OpSlice> pieces, int rank) const {
  int64_t all = 0, before = 0;
  for (const OpSlice& piece : pieces) {
    for (size_t s = piece.first; s < piece.last; ++s) all += num_tokens(*piece.op, s);
  }
  std::vector<OpSlice> out(pieces.begin(), pieces.end());
  for (OpSlice& piece : out) {
    const size_t end = piece.last;
    size_t first = end, last = end;
    for (size_t s = piece.first; s < end; ++s) {
      const int64_t n = num_tokens(*piece.op, s);
      if ((2 * before + n) * comm_->size() / (2 * all) == rank) {
        first = std::min(first, s);
        last = s + 1;
      }
      before += n;
    }
    piece.first = first;
    piece.last = last;
  }
  return out;
}

std::vector<OpSlice> Split::mine(std::span<const OpSlice> pieces) const {
  if (alone()) return {pieces.begin(), pieces.end()};
  return of_rank(pieces, comm_->rank());
}

std::vector<float> Split::gather(const std::vector<float>& values,
                                 std::span<const int64_t> counts) const {
  at::Tensor sent = at::empty({std::ssize(values)}, at::kFloat);
  std::ranges::copy(values, sent.mutable_data_ptr<float>());
  const at::Tensor all = comm_->all_gather(sent, counts);
  return {all.const_data_ptr<float>(), all.const_data_ptr<float>() + all.numel()};
}

Split::Scores Split::gather(const OpSlice& piece, std::span<const OpSlice> pieces,
                            Scores mine) const {
  if (alone()) return mine;
  const auto index = static_cast<size_t>(&piece - pieces.data());
  std::vector<int64_t> counts;
  for (int r = 0; r < comm_->size(); ++r) {
    const OpSlice theirs = of_rank(pieces, r)[index];
    counts.push_back(theirs.op->num_scored(theirs.first, theirs.last));
  }
  Scores out{.logprobs = gather(mine.logprobs, counts)};
  if (piece.op->wants_entropy()) out.entropies = gather(mine.entropies, counts);
  return out;
}

std::vector<bool> Split::append(std::span<const OpSlice> pieces, std::vector<PieceOutputs> mine,
                                Widths widths) const {
  std::vector<bool> finite(pieces.size(), true);
  if (alone()) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      finite[i] = mine[i].finite;
      pieces[i].op->append(std::move(mine[i].outputs), pieces[i].last);
    }
    return finite;
  }
  std::vector<float> sent;
  for (const PieceOutputs& piece : mine) write(piece, sent);
  std::vector<std::vector<OpSlice>> of_ranks;
  std::vector<int64_t> counts;
  for (int r = 0; r < comm_->size(); ++r) {
    of_ranks.push_back(of_rank(pieces, r));
    counts.push_back(0);
    for (const OpSlice& piece : of_ranks.back()) counts.back() += Counts(piece, widths).sum();
  }
  const std::vector<float> all = gather(sent, counts);
  Reader reader(all);
  for (const auto& theirs : of_ranks) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Counts of(theirs[i], widths);
      if (reader.take(1)[0] == 0) finite[i] = false;
      TrainingOp::Outputs part{.logprobs = reader.take(of.scored),
                               .entropies = reader.take(of.entropies)};
      part.logits = reader.take_rows(of.logits);
      part.embeddings = reader.take_rows(of.embeddings);
      if (theirs[i].first < theirs[i].last) theirs[i].op->append(std::move(part), theirs[i].last);
    }
  }
  return finite;
}

void Split::give_up(const std::string& why) const noexcept {
  if (!alone()) comm_->close(why);
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

void Partials::add(std::span<const OpSlice> pieces) const {
  if (split_.alone()) return;
  const auto learns = [](const OpSlice& piece) { return !piece.op->error && !piece.again; };
  const auto size_of = [&](const OpSlice& piece) {
    return static_cast<int64_t>(piece.last - piece.first) *
           piece.op->tenant().adapter().num_parameters();
  };
  std::vector<int64_t> counts;
  for (int r = 0; r < split_.comm_->size(); ++r) {
    counts.push_back(0);
    for (const OpSlice& piece : split_.of_rank(pieces, r)) {
      if (learns(piece)) counts.back() += size_of(piece);
    }
  }
  std::vector<at::Tensor> sent;
  auto shadow = shadows_.begin();
  for (const OpSlice& piece : split_.mine(pieces)) {
    for (size_t s = piece.first; s < piece.last; ++s, ++shadow) {
      if (!learns(piece)) continue;
      sent.push_back(pool_.at(shadow->slot()).flat_grads());
    }
  }
  const at::Tensor mine = sent.empty() ? at::empty({0}, at::kFloat) : at::cat(sent);
  const at::Tensor all = split_.comm_->all_gather(mine, counts);
  int64_t at = 0;
  for (const OpSlice& piece : pieces) {
    if (!learns(piece)) continue;
    lora::Adapter& adapter = piece.op->tenant().adapter();
    const int64_t count = adapter.num_parameters();
    for (size_t s = piece.first; s < piece.last; ++s, at += count)
      adapter.add_grads_of_shadow(all.narrow(0, at, count));
  }
}

}  // namespace twinkle::engine
