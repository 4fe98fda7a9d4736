// Forward passes that wait, with their activations, for the loss of their whole operation, so that
// it takes one forward (docs/decisions/0018-one-pass.md). An operation keeps all of its passes or
// none; together they stay within the decoder's activation limit. The engine's thread, except for
// num_bytes().
#pragma once
#include <atomic>
#include <deque>
#include <map>

#include "twinkle/engine/training/batch.h"

namespace twinkle::engine {

class KeptPasses {
 public:
  explicit KeptPasses(const PassContext& with) : with_(with) {}

  // True: the piece, the operation's next one, is to be kept. False: its operation keeps nothing,
  // from here on: it does not learn, or all of it does not fit beside what others keep.
  bool admit(const OpSlice& piece);
  // As forward_pass, of a piece that was admitted.
  void forward(OpSlice& piece, const Stop& stop);

  bool has(int64_t id) const { return of_.contains(id); }
  // True: `piece` holds the last sequence of a kept pass, which is to go backwards.
  bool due(const OpSlice& piece) const;
  // As backward_pass, of the passes that are due; the operation's derivative is known.
  void backward(OpSlice& piece, const Stop& stop);

  // Frees what the operation keeps. False: nothing. Takes no memory.
  bool forget(int64_t id);
  int64_t newest() const { return of_.rbegin()->first; }  // operation; there is one
  // Activations that are kept, or will be until their operations are scored. Any thread.
  int64_t num_bytes() const { return num_bytes_; }
  // The same that the backward pass of these pieces would keep.
  int64_t num_bytes(std::span<const OpSlice> pieces) const;

 private:
  struct Kept {
    std::deque<KeptPass> passes;
    int64_t bytes = 0;
  };
  void resize(Kept& kept, int64_t bytes);

  const PassContext with_;
  std::map<int64_t, Kept> of_;  // operations
  std::atomic<int64_t> num_bytes_ = 0;
};

}  // namespace twinkle::engine
