#include "twinkle/parallel/ownership.h"

#include <ATen/ATen.h>

#include <map>

namespace twinkle::parallel {

Ownership::Ownership(model::Decoder& decoder, int num_ranks, int fsdp)
    : num_ranks_(num_ranks), fsdp_(fsdp), num_weights_(decoder.weights().size()) {
  const at::ScalarType type = decoder.dtype();
  std::map<size_t, Piece> matrices;
  std::map<at::ScalarType, Piece> vectors;
  for (size_t i = 0; i < num_weights_; ++i) {
    const at::Tensor& value = *decoder.weights()[i].value;
    const size_t number = decoder.pieces()[i];
    const bool is_cut = value.dim() >= 2;
    Piece& piece = is_cut ? matrices[number] : vectors[value.scalar_type()];
    if (is_cut) piece.number = number;
    const int64_t begin = whole_lines(piece.count, type);
    piece.count = begin + value.numel();
    piece.members.push_back({i, {begin, piece.count}});
  }
  for (auto& [number, piece] : matrices) {
    piece.num_parts = fsdp;
    pieces_.push_back(std::move(piece));
  }
  for (auto& [of_type, piece] : vectors) pieces_.push_back(std::move(piece));
  for (Piece& piece : pieces_) piece.part = part_of(piece.count, piece.num_parts, type);
}

Run Ownership::run(const Piece& piece, int rank) const {
  const int64_t holders = num_ranks_ / piece.num_parts;  // ranks that hold each part
  const int64_t share = (piece.part + holders - 1) / holders;
  const Run part{rank % piece.num_parts * piece.part, (rank % piece.num_parts + 1) * piece.part};
  const int64_t begin = part.begin + rank / piece.num_parts * share;
  return Run{begin, begin + share}.in(part).in({0, piece.count});
}

std::vector<Run> Ownership::runs(int rank) const {
  std::vector<Run> out(num_weights_);
  for (const Piece& piece : pieces_) {
    const Run mine = run(piece, rank);
    for (const auto& [weight, at] : piece.members) {
      const Run both = at.in(mine);
      if (both.size() > 0) out[weight] = {both.begin - at.begin, both.end - at.begin};
    }
  }
  return out;
}

}  // namespace twinkle::parallel
