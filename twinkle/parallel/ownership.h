// The elements of the weights that each rank keeps while all of them are trained: of N data ranks
// each has a run of every weight, and with it 1/N of the gradients, of the float32 weights that are
// stepped and of the optimizer's state. A piece's matrices lie one after the other, as in Shards,
// in `fsdp` equal parts, each of which is cut over the ranks that hold it. Norms and biases are
// whole everywhere: those of one type are one more piece, cut over all. Immutable; any thread.
// docs/decisions/0023-all-weights.md.
#pragma once
#include <optional>
#include <vector>

#include "twinkle/model/decoder.h"
#include "twinkle/parallel/run.h"

namespace twinkle::parallel {

class Ownership {
 public:
  // Rank r of num_ranks has part r % fsdp of what the base's ranks share; 1: each has all of it.
  Ownership(model::Decoder& decoder, int num_ranks, int fsdp);

  struct Member {
    size_t weight;  // its index in the decoder
    Run at;         // the piece's elements that it is
  };
  struct Piece {
    std::optional<size_t> number;  // the decoder's; none: of norms and biases
    std::vector<Member> members;
    int64_t count = 0;  // elements
    int num_parts = 1;  // fsdp, or 1
    int64_t part = 0;   // elements of each
  };

  int num_ranks() const { return num_ranks_; }
  int fsdp() const { return fsdp_; }
  // By their numbers; those of norms and biases are the last.
  const std::vector<Piece>& pieces() const { return pieces_; }
  // A rank's run of the piece's elements.
  Run run(const Piece& piece, int rank) const;
  // A rank's run of each weight's elements, in the decoder's order.
  std::vector<Run> runs(int rank) const;

 private:
  int num_ranks_, fsdp_;
  size_t num_weights_;
  std::vector<Piece> pieces_;
};

}  // namespace twinkle::parallel
