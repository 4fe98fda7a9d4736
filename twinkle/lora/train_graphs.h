// Training passes over a decoder on a device, recorded as graphs of launches: a small model's take
// longer to start one by one than to run. The second time that sequences of the same lengths and
// owners come, the decoder's forward and its backward are recorded, and replayed from then on, with
// the numbers that they have without. Copied into the memory that they read are token ids and the
// hidden states' gradient. Everything else is static: the base weights; the adapters' weights, of
// which every replay makes the kernels' layouts anew, so that a step voids nothing; and the
// gradients' sums, which move into a recording's memory. A recording is void when its adapters'
// weights are gone or elsewhere: copied before a change, because others read them, or parked. Knows
// no tenants. One thread, the decoder's.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/base/guarded.h"
#include "twinkle/lora/pool.h"
#include "twinkle/model/decoder.h"

namespace twinkle::lora {

class TrainGraphs {
 public:
  static constexpr size_t kMax = 8;
  // Both outlive it. `most`: passes that are remembered, those that came last; 0: none is recorded.
  TrainGraphs(model::Decoder& decoder, Pool& pool, size_t most = kMax);
  ~TrainGraphs();

  // As the decoder's forward_train and backward; a backward() is that of the last forward(), whose
  // hidden states are good until the next. Not recorded: passes on the CPU, those with dropout or
  // sequences that learn nothing, of base weights that learn, of activations beyond the decoder's
  // limit, which is also one for those of all recordings together.
  at::Tensor forward(model::Tape& tape);
  void backward(model::Tape& tape, const at::Tensor& dhidden);

  // Lets go of the recordings that are void, and the memory that they hold: adapters' among it.
  void sweep();
  // Lets go of all recordings. False: there was none.
  bool forget();
  // Passes that were replayed. Any thread.
  int64_t num_replays() const { return num_replays_; }
  // Why none is recorded any more: the text of a recording that failed; else empty. Any thread.
  std::string failure() const;

 private:
  struct Pass;
  struct Recorded;

  bool can_record(const model::Batch& batch) const;
  std::shared_ptr<Pass> find(const model::Batch& batch);
  void record(Pass& pass, const at::Tensor& dhidden);
  std::unique_ptr<Recorded> recorded(const Pass& pass, const at::Tensor& dhidden);
  bool make_room(int64_t bytes);

  model::Decoder& decoder_;
  Pool& pool_;
  const size_t most_;
  std::vector<std::shared_ptr<Pass>> passes_;  // the one that came last at the end
  std::shared_ptr<Pass> current_;              // the last forward(), where it may be recorded
  int64_t num_passes_ = 0;
  std::atomic<int64_t> num_replays_ = 0;
  mutable Mutex mutex_;
  std::string failure_ GUARDED_BY(mutex_);
};

}  // namespace twinkle::lora
