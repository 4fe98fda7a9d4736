#include "twinkle/lora/train_graphs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "twinkle/kernels/cuda/graph.h"

namespace twinkle::lora {

using kernels::cuda::Graph;
using RecordedCopies = std::map<int32_t, std::unique_ptr<Adapter>>;  // by slot

// The memory that the graphs read and write, and the graphs.
struct TrainGraphs::Recorded {
  RecordedCopies recorded_copies;
  model::Tape tape;
  at::Tensor hidden, dhidden;
  int64_t bytes = 0;  // bytes of activations
  std::unique_ptr<Graph> forward, backward;
};

struct TrainGraphs::Pass {
  nn::Rows rows;                // on the CPU
  RecordedCopies adapters;      // that have nothing but the weights as they lay
  int64_t times = 0, last = 0;  // that it came
  std::unique_ptr<Recorded> recorded;
};

namespace {

constexpr int64_t kIdle = 16;  // passes after which a recording makes room for another

// Puts the recorded_copies into their slots while it lives.
class SwapScope {
 public:
  SwapScope(Pool& pool, const RecordedCopies& recorded_copies)
      : pool_(pool), recorded_copies_(recorded_copies) {
    swap();
  }
  ~SwapScope() { swap(); }
  SwapScope(const SwapScope&) = delete;
  SwapScope& operator=(const SwapScope&) = delete;

 private:
  void swap() const {
    for (const auto& [slot, recorded_copy] : recorded_copies_) pool_.at(slot).swap(*recorded_copy);
  }
  Pool& pool_;
  const RecordedCopies& recorded_copies_;
};

bool all_learn(const nn::Rows& rows) {
  return std::ranges::all_of(rows.segments, &nn::Segment::learn);
}

}  // namespace

TrainGraphs::TrainGraphs(model::Decoder& decoder, Pool& pool, size_t most)
    : decoder_(decoder), pool_(pool), most_(most) {}

TrainGraphs::~TrainGraphs() = default;

bool TrainGraphs::can_record(const model::Batch& batch) const {
  if (!failure().empty()) return false;
  if (most_ == 0 || decoder_.device().is_cpu() || !decoder_.buffers().empty()) return false;
  if (batch.kv != nullptr || !all_learn(batch.rows)) return false;
  for (const nn::Segment& segment : batch.rows.segments) {
    const int32_t slot = segment.slot;
    // Every pass has a mask of its own.
    if (slot >= 0 && segment.key != 0 && pool_.at(slot).config().dropout > 0) return false;
  }
  const int64_t limit = decoder_.activation_limit();
  return limit == 0 || decoder_.activation_bytes(batch) <= limit;
}

std::shared_ptr<TrainGraphs::Pass> TrainGraphs::find(const model::Batch& batch) {
  if (!can_record(batch)) return nullptr;
  const auto same = std::ranges::find_if(passes_, [&](const auto& pass) {
    return pass->rows.cu_seqlens == batch.rows.cu_seqlens &&
           std::ranges::equal(pass->rows.segments, batch.rows.segments, {}, &nn::Segment::slot,
                              &nn::Segment::slot) &&
           pass->rows.position_ids.equal(batch.rows.position_ids);
  });
  if (same == passes_.end()) {
    if (passes_.size() == most_) passes_.erase(passes_.begin());
    auto pass = std::make_shared<Pass>(Pass{.rows = batch.rows});
    for (const nn::Segment& segment : batch.rows.segments) {
      if (segment.slot >= 0) pass->adapters[segment.slot] = pool_.at(segment.slot).recorded_copy();
    }
    passes_.push_back(std::move(pass));
  } else {
    std::rotate(same, same + 1, passes_.end());
  }
  ++passes_.back()->times;
  passes_.back()->last = num_passes_;
  return passes_.back();
}

at::Tensor TrainGraphs::forward(model::Tape& tape) {
  ++num_passes_;
  sweep();
  current_ = find(tape.batch);
  if (!current_ || !current_->recorded) return decoder_.forward_train(tape);
  Recorded& mine = *current_->recorded;
  mine.tape.batch.input_ids.copy_(tape.batch.input_ids);
  mine.forward->replay();
  return mine.hidden;
}

void TrainGraphs::backward(model::Tape& tape, const at::Tensor& dhidden) {
  const std::shared_ptr<Pass> pass = std::exchange(current_, nullptr);
  if (!pass || !pass->recorded) {
    decoder_.backward(tape, dhidden);
    if (pass && pass->times > 1) record(*pass, dhidden);
    return;
  }
  if (!all_learn(tape.batch.rows)) {
    // Not any more: a backward of its own, for which a replayed forward leaves nothing.
    decoder_.forward_train(tape);
    return decoder_.backward(tape, dhidden);
  }
  Recorded& mine = *pass->recorded;
  for (const auto& [slot, recorded_copy] : mine.recorded_copies)
    pool_.at(slot).add_grads_in(*recorded_copy);
  mine.dhidden.copy_(dhidden);
  mine.backward->replay();
  ++num_replays_;
}

// The pass has been computed by then: what fails here, for want of memory, say, is done without.
// A failed recording may leave memory behind that torch does not give back: it is the last.
void TrainGraphs::record(Pass& pass, const at::Tensor& dhidden) {
  try {
    pass.recorded = recorded(pass, dhidden);
  } catch (const std::exception& e) {
    forget();
    const Lock lock(mutex_);
    failure_ = std::string("training is not recorded: ") + e.what();
  }
}

std::string TrainGraphs::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

std::unique_ptr<TrainGraphs::Recorded> TrainGraphs::recorded(const Pass& pass,
                                                             const at::Tensor& dhidden) {
  auto out = std::make_unique<Recorded>();
  model::Batch& batch = out->tape.batch;
  batch.rows = pass.rows;
  out->bytes = decoder_.activation_bytes(batch);
  if (!make_room(out->bytes)) return nullptr;
  batch.rows.position_ids = pass.rows.position_ids.to(decoder_.device(), at::kLong);
  batch.input_ids = at::zeros_like(batch.rows.position_ids);
  out->dhidden = at::zeros_like(dhidden);
  for (const auto& [slot, weights] : pass.adapters) {
    auto& recorded_copy = out->recorded_copies[slot] = weights->recorded_copy();
    recorded_copy->pack(decoder_.dtype());
    recorded_copy->make_grads();
  }
  const auto forward = [this, at = out.get()] {
    for (const auto& [slot, recorded_copy] : at->recorded_copies) recorded_copy->refresh();
    const SwapScope swapped(pool_, at->recorded_copies);
    at->hidden = decoder_.forward_train(at->tape);
  };
  const auto backward = [this, at = out.get()] {
    const SwapScope swapped(pool_, at->recorded_copies);
    decoder_.backward(at->tape, at->dhidden);
  };
  forward(),
      backward();  // for tables and workspaces; the sums that it makes are the recorded_copies'
  out->forward = kernels::cuda::record(decoder_.device(), forward);
  out->backward = kernels::cuda::record(decoder_.device(), backward, out->forward.get());
  return out;
}

// Recordings that go on being used do not take turns in being made.
bool TrainGraphs::make_room(int64_t bytes) {
  const int64_t limit = decoder_.activation_limit();
  for (const auto& pass : passes_) bytes += pass->recorded ? pass->recorded->bytes : 0;
  for (const auto& pass : passes_) {
    if (limit == 0 || bytes <= limit) return true;
    if (!pass->recorded || num_passes_ - pass->last < kIdle) continue;
    bytes -= pass->recorded->bytes;
    pass->recorded.reset();
  }
  return limit == 0 || bytes <= limit;
}

void TrainGraphs::sweep() {
  std::erase_if(passes_, [this](const auto& pass) {
    return std::ranges::any_of(pass->adapters, [this](const auto& entry) {
      const Adapter* now = pool_.find(entry.first);
      return now == nullptr || !now->has_weights_of(*entry.second);
    });
  });
}

bool TrainGraphs::forget() {
  current_.reset();
  return std::ranges::any_of(std::exchange(passes_, {}),
                             [](const auto& pass) { return pass->recorded != nullptr; });
}

}  // namespace twinkle::lora
