// A pass that several ranks take together: each computes a run of its sequences and tells the
// others what came of them, so that every rank holds the operations, and the gradients, that one
// rank alone would, bit for bit. Which sequences are whose depends on their lengths alone, and all
// ranks know all operations: nothing has to be agreed. One rank has all of them, and tells nobody.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "twinkle/engine/training/batch.h"
#include "twinkle/lora/pool.h"
#include "twinkle/mesh/comm.h"
#include "twinkle/nn/rows.h"

namespace twinkle::engine {

// The results of a pass for a piece.
struct PieceOutputs {
  TrainingOp::Outputs outputs;
  bool finite = true;
};

class Split {
 public:
  // `comm`: of the ranks. It outlives this.
  explicit Split(mesh::Comm& comm = mesh::null_comm()) : comm_(comm) {}

  bool alone() const { return comm_.size() == 1; }
  mesh::Comm& comm() const { return comm_; }

  // Each rank's own sequences of every piece of a pass, an empty run where it has
  // none: [n][pieces].
  using Cut = std::vector<std::vector<OpSlice>>;
  Cut cut(std::span<const OpSlice> pieces) const;
  const std::vector<OpSlice>& mine(const Cut& cut) const {
    return cut[static_cast<size_t>(comm_.rank())];
  }

  // Scored rows of all ranks of the piece at `index`.
  struct Scores {
    std::vector<float> logprobs, entropies;
  };
  Scores gather(size_t index, const Cut& cut, Scores mine) const;

  // Every operation gets what all ranks have computed of it; `mine` has one for each piece.
  // `embedding`: floats of one, `vocabulary`: of a token's logits, and `routes`: numbers of experts
  // that a token goes to. Returns whether every rank's part of each piece is finite.
  struct Widths {
    int64_t embedding, vocabulary, routes;
  };
  std::vector<bool> append(const Cut& cut, std::vector<PieceOutputs> mine, Widths widths) const;

  // True, for each tenant, if it is so on every rank.
  std::vector<bool> on_all(const std::vector<bool>& mine) const;

  // Ends the group: this rank has failed alone, and the others wait for it.
  void give_up(const std::string& why) const noexcept;

 private:
  std::vector<float> gather(const std::vector<float>& values,
                            std::span<const int64_t> counts) const;

  mesh::Comm& comm_;
};

// The gradients that a backward pass adds, each sequence's in a buffer of its own, until their
// owners add them to their tenants' in the order of the sequences: the sums of one rank.
class Partials {
 public:
  // `rows` are those of this rank's sequences, whose adapters give way to shares of the same
  // weights. Nothing of one rank.
  Partials(const Split& split, lora::Pool& pool, at::ScalarType type, nn::Rows& rows);

  // The results of all ranks, without the pieces that have failed or are to run again.
  void add(std::span<const OpSlice> pieces, const Split::Cut& cut) const;

 private:
  at::Tensor for_owners(std::span<const OpSlice> pieces, std::span<const OpSlice> mine,
                        std::span<const int64_t> to) const;

  const Split& split_;
  lora::Pool& pool_;
  std::vector<lora::AdapterRef> shadows_;  // one for each of this rank's sequences that learns
};

}  // namespace twinkle::engine
