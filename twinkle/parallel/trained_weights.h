// All weights of a decoder in training over several ranks, of which each keeps what Ownership says:
// the float32 values that are stepped, and the sums of their gradients. The gradient of a piece is
// there only from its backward until the ranks have added it up, in their order, each its run.
// After a step the ranks tell their new values to those that hold them. N ranks, P parameters, e
// bytes of the decoder's dtype: a rank sends 4 P (N - 1)/N for a pass, and a byte for each weight
// to each other rank. The decoder's thread; the ranks make the same calls in the same order.
// docs/decisions/0023-all-weights.md.
#pragma once
#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "twinkle/mesh/comm.h"
#include "twinkle/model/decoder.h"
#include "twinkle/parallel/ownership.h"
#include "twinkle/parallel/shards.h"

namespace twinkle::parallel {

class TrainedWeights {
 public:
  // From here until it ends the decoder's weights learn. `shards`: that hold the matrices, or null:
  // each rank has all. All outlive it.
  TrainedWeights(model::Decoder& decoder, const Ownership& ownership, mesh::Comm& comm,
                 Shards* shards);
  ~TrainedWeights();
  TrainedWeights(const TrainedWeights&) = delete;
  TrainedWeights& operator=(const TrainedWeights&) = delete;

  int rank() const { return comm_.rank(); }
  int num_ranks() const { return comm_.size(); }
  const std::vector<Run>& runs() const { return runs_; }  // each weight's run on this rank
  // This rank's run of each weight, in the decoder's order, [elements], float32: the values, and
  // the sums of passes since zero_grads(), which are undefined where they are zero on all ranks.
  const std::vector<at::Tensor>& masters() const { return masters_; }
  const std::vector<at::Tensor>& grads() const { return grads_; }
  void set_grads(std::vector<at::Tensor> grads);  // takes no memory
  void zero_grads();

  // The decoder has the masters' values, in its dtype, on every rank. A rank sends what it owns,
  // e P / N bytes, to the ranks that hold it: N/fsdp, or, of a piece that all hold, N; one of them
  // is itself.
  void share();
  // Replaces them: runs as of masters(), of any float type. Then share().
  void assign(const std::vector<at::Tensor>& runs);
  // All of a weight, of which each rank gives its run, float32.
  at::Tensor whole(size_t weight, const at::Tensor& run) const;

 private:
  using Piece = Ownership::Piece;
  void completed(size_t number);
  void add(const Piece& piece);
  void agree_on_zeros();
  using Held = std::map<std::string, Shards::Held>;
  Held held() const;
  at::Tensor here(const Held& held, const Ownership::Member& member, const Run& run) const;
  void share(const Piece& piece, const Held& held);

  model::Decoder& decoder_;
  const Ownership& ownership_;
  mesh::Comm& comm_;
  Shards* const shards_;
  const std::vector<Run> runs_;
  std::vector<at::Tensor> masters_, grads_;
  std::vector<char> added_;    // for each weight: this rank has had a gradient in this pass
  std::vector<size_t> fresh_;  // weights whose sum was zero before this pass
};

}  // namespace twinkle::parallel
