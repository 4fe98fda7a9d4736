// The Executor over a decoder: owns all mutable state of the model, its adapters, tenants and the
// sampler. The dispatcher's thread, except for construction, facts, statistics and
// reset_prefix_cache.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>

#include "twinkle/engine/checkpoint/persist.h"
#include "twinkle/engine/checkpoint/prefetch.h"
#include "twinkle/engine/execute/model_info.h"
#include "twinkle/engine/execute/sampling.h"
#include "twinkle/engine/memory/parking.h"
#include "twinkle/engine/options.h"
#include "twinkle/engine/schedule/executor.h"
#include "twinkle/engine/tenant.h"
#include "twinkle/engine/training/split.h"
#include "twinkle/engine/training/training.h"
#include "twinkle/engine/weights/shelf.h"
#include "twinkle/parallel/shards.h"

namespace twinkle::engine {

// Channels of a group's ranks; outlive who is given them.
struct Comms {
  mesh::Comm& data = mesh::null_comm();  // that run the same calls and share each pass
  mesh::Comm* base = nullptr;            // that share the base's weights; null: each has all
};

class DecoderExecutor : public Executor {
 public:
  // All but options.scheduling. `decoders` are of the Samples' tokenizers.
  explicit DecoderExecutor(const EngineOptions& options, Decoders decoders = {}, Comms comms = {});
  ~DecoderExecutor() override;

  const ModelInfo& model_info() const { return model_info_; }
  int64_t num_recomputed_layers() const { return decoder_->num_recomputed_layers(); }  // any thread
  int64_t num_kept_bytes() const { return training_->num_kept_bytes(); }               // any thread
  int64_t num_replayed_passes() const { return graphs_->num_replays(); }               // any thread
  std::string graph_failure() const;                                                   // any thread
  ParkingStats parking() const { return parking_.stats(); }                            // any thread
  const model::DecoderSpec& spec() const { return decoder_->spec(); }
  SamplingStats sampling() const { return sampling_->stats(); }  // any thread
  void reset_prefix_cache() { sampling_->forget_prefixes(); }    // any thread
  Shelf& shelf() { return shelf_; }                              // any thread

  void begin() override;
  bool changes_base(const Operation& operation) override;
  bool joins(const Operation& operation) const override;
  int64_t max_result_bytes(const Operation& operation, bool streams) const override;
  std::shared_ptr<Prepared> prepare(const Operation& operation, const Reserve& reserve) override;
  bool waits(const Operation& operation) override;
  SampleRoom sample_room(const Sample& sample, int64_t promised) override;
  int64_t batch_room() override;
  int64_t batch_bytes(const std::string& tenant) override;
  FirstPart first_part(const Operation& operation) override;
  Result run(const Operation& operation, Prepared* prepared) override;
  void run_batch(std::span<const Work> batch, const std::atomic<bool>& stop,
                 BatchOutcome& outcome) override;
  void start(int64_t id, const Sample& sample, Share share, SampleHooks hooks,
             Prepared* prepared) override;
  std::vector<Ended> step() override;
  int64_t newest() const override { return sampling_->newest(); }
  int64_t num_generated(int64_t id) const override { return sampling_->num_generated(id); }
  Result commit(int64_t id) override;
  void undo(int64_t id) override;

 private:
  void make(const EngineOptions& options, const Comms& comms, at::Device device);
  Tenant& look_up(const std::string& name) const;
  Tenant& tenant(const std::string& name);  // in memory again, if it was parked
  template <class F>
  auto together(F&& work);
  Result run_on(Tenant& who, const Operation& operation, Prepared* prepared);
  void create(const Create& operation, Prepared* prepared);
  void require_room(const Create& operation) const;
  std::unique_ptr<lora::Adapter> new_adapter(const Create& operation, Prepared* prepared);
  void remove(const Delete& operation, Prepared* prepared);
  template <class Read>
  Loaded taken(Prepared* prepared, const TenantShape& shape, Read&& read);
  template <class Read>
  Loaded taken_together(Prepared* prepared, const TenantShape& shape, const std::string& folder,
                        Read&& read);
  void trim_heaps();
  void replace(const ReplaceWeights& operation, Tenant& who);
  void give_up(const std::exception& error);
  void end_round();  // after anything that may change the size of adapters' state

  BaseModel base_;
  KeptMemory copies_;  // for Saves
  CarriedFiles carried_;
  std::multiset<std::string> writing_;  // folders of Saves that have begun
  int64_t writing_bytes_ = 0;           // that they hold
  int64_t num_models_written_ = 0;      // among those: their weights must not change
  Prefetch prefetch_{base_};
  const Decoders decoders_;
  ModelInfo model_info_;
  std::unique_ptr<parallel::Shards> shards_;  // null: this rank has all of the base
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<parallel::Ownership> ownership_;  // for all weights in training; null: one rank
  std::unique_ptr<lora::Pool> pool_;
  std::map<std::string, std::unique_ptr<Tenant>> tenants_;
  Parking parking_;
  const Split split_;
  std::unique_ptr<lora::TrainGraphs> graphs_;
  std::unique_ptr<Training> training_;
  std::unique_ptr<Sampling> sampling_;
  Shelf shelf_;
  int64_t untrimmed_bytes_ = 0;  // read or parked since the last trim
  int num_threads_ = 1;          // torch's setting, for which exactness was proven
};

}  // namespace twinkle::engine
