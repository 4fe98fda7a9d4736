// The Forwards and ForwardBackwards that have begun, and their batches. An operation that fails, or
// is undone, leaves its tenant's gradients as they were. The engine's thread.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "twinkle/engine/execute/batch.h"
#include "twinkle/engine/execute/training_op.h"
#include "twinkle/engine/schedule/executor.h"

namespace twinkle::engine {

class Training {
 public:
  using TenantOf = std::function<Tenant&(const std::string& name)>;  // Error kNotFound
  // All outlive it.
  Training(model::Decoder& decoder, lora::TrainGraphs& graphs, TenantOf tenant)
      : decoder_(decoder), graphs_(graphs), tenant_(tenant) {}

  // As Executor says of it.
  void run_batch(std::span<const Work> batch, const Stop& stop, BatchOutcome& outcome);
  bool has(int64_t id) const { return running_.contains(id); }
  std::set<const Tenant*> tenants() const;  // of operations that have begun
  ForwardResult commit(int64_t id);
  bool undo(int64_t id);  // false: it is not here

 private:
  using Run = std::function<void(std::span<OpSlice> pieces)>;
  TrainingOp& begun(const Work& work);
  void pass(std::span<OpSlice> pieces, const Run& run, BatchOutcome& outcome);
  void retry_alone(std::span<const OpSlice> pieces, std::exception_ptr error,
                   BatchOutcome& outcome);
  void finish(TrainingOp& op, BatchOutcome& outcome);

  model::Decoder& decoder_;
  lora::TrainGraphs& graphs_;
  TenantOf tenant_;
  std::map<int64_t, std::unique_ptr<TrainingOp>> running_;
};

}  // namespace twinkle::engine
