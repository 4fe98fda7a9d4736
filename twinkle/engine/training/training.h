// The Forwards and ForwardBackwards that have begun, and their batches. An operation that fails, or
// is undone, leaves its tenant's gradients as they were. The engine's thread.
#pragma once
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "twinkle/engine/schedule/executor.h"
#include "twinkle/engine/training/batch.h"
#include "twinkle/engine/training/kept_passes.h"
#include "twinkle/engine/training/training_op.h"

namespace twinkle::engine {

class Training {
 public:
  using TenantOf = std::function<Tenant&(const std::string& name)>;  // Error kNotFound
  // Both outlive it.
  Training(const PassContext& with, TenantOf tenant) : with_(with), tenant_(tenant), kept_(with) {}

  // As Executor says of it.
  void run_batch(std::span<const Work> batch, const Stop& stop, BatchOutcome& outcome);
  bool has(int64_t id) const { return running_.contains(id); }
  const Tenant& tenant(int64_t id) const { return running_.at(id)->tenant(); }  // it is here
  std::set<const Tenant*> tenants() const;  // tenants of operations that have begun
  ForwardResult commit(int64_t id);
  bool undo(int64_t id);  // false: it is not here
  // Bytes of activations that operations keep from batch to batch. Any thread.
  int64_t num_kept_bytes() const { return kept_.num_bytes(); }

 private:
  using Run = std::function<void(std::span<OpSlice> pieces)>;
  TrainingOp& begun(const Work& work);
  void require_alike(const std::exception_ptr& error) const;
  void run_forwards(std::span<OpSlice> pieces, const Stop& stop, BatchOutcome& outcome);
  void run_kept(std::span<OpSlice> pieces, const Stop& stop, BatchOutcome& outcome);
  void pass(std::span<OpSlice> pieces, const Run& run, BatchOutcome& outcome);
  std::vector<std::vector<OpSlice>> overflows(std::span<const OpSlice> pieces) const;
  void retry_alone(std::span<const OpSlice> pieces, std::exception_ptr error,
                   BatchOutcome& outcome);
  bool free_kept(int64_t most, BatchOutcome& outcome);
  void finish(TrainingOp& op, BatchOutcome& outcome);

  const PassContext with_;
  TenantOf tenant_;
  std::map<int64_t, std::unique_ptr<TrainingOp>> running_;
  KeptPasses kept_;
};

}  // namespace twinkle::engine
