// One tenant's state inside the engine: what its operations change, and nothing that a neighbour
// could see. Used by the engine's thread alone.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/engine/checkpoint/training_state.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/engine/protocol/result.h"
#include "twinkle/engine/training/owners.h"
#include "twinkle/engine/training/run_peers.h"
#include "twinkle/lora/pool.h"
#include "twinkle/model/decoder.h"
#include "twinkle/optim/optimizer.h"
#include "twinkle/parallel/trained_weights.h"

namespace twinkle::engine {

enum class Mode { kFrozen, kLora, kFull };

// A tied head's weight is the embedding, but its gradient is summed apart, under this name.
inline constexpr const char* kHeadWeight = "lm_head.weight";

class Tenant {
 public:
  // Its surroundings, which outlive it. `comm`: of the ranks that share its training state, or
  // null: there is one. Every rank then steps, clips and inspects it together. `ownership`: theirs
  // of all weights, where there are several; `shards`: null where each has all of the base.
  struct Home {
    model::Decoder& decoder;
    lora::Pool& pool;
    mesh::Comm* comm = nullptr;
    const parallel::Ownership* ownership = nullptr;
    parallel::Shards* shards = nullptr;
  };
  // `pin`: of its adapter, or of nothing.
  Tenant(std::string name, Mode mode, lora::AdapterRef pin, uint64_t seed, const Home& home);
  ~Tenant();
  Tenant(const Tenant&) = delete;
  Tenant& operator=(const Tenant&) = delete;

  const std::string& name() const { return name_; }
  Mode mode() const { return mode_; }
  int32_t slot() const { return pin_.slot(); }  // slot of its adapter; -1 without one
  // True: the head's weight, or an adapter's factors on it, learn.
  bool trains_head() const {
    return mode_ == Mode::kFull || (mode_ == Mode::kLora && pool_.on_head(slot()));
  }
  // True: experts share factors of its adapter (PeftConfig::share_expert_factors).
  bool shares_factors() const {
    return mode_ == Mode::kLora && pool_.at(slot()).config().share_expert_factors;
  }

  // Labels of its adapter's head; 0: it has none.
  int64_t num_labels() const {
    return mode_ == Mode::kLora ? pool_.at(slot()).config().num_labels : 0;
  }

  // Error kInvalid: that, and there are several data ranks, between which owners part its state.
  void require_one_rank_of_shared(const char* method) const;

  // Keeps the weights as they are now, whatever is trained later, and returns their number: 1, 2,
  // ... Nothing is copied before the weights change. Error kInvalid: a tenant without an adapter.
  int64_t publish();
  // Error kNotFound: no such version is kept, for both.
  void release(int64_t version);
  // Holds the weights of a published version, or, of 0, the present ones. Of nothing without an
  // adapter.
  lora::AdapterRef pinned(int64_t version = 0) const;
  lora::Adapter& adapter() { return pool_.at(slot()); }
  const Owners& owners() const { return owners_; }  // for gradients and steps
  // Ranks that have a part of its training state each; the number is 1 where this one has all.
  int rank() const { return parts_ ? parts_->rank() : owners_.rank(); }
  int num_ranks() const { return parts_ ? parts_->num_ranks() : owners_.num_ranks(); }
  // The adapter, when its weights are about to change: a copy if others hold them.
  lora::Adapter& own_adapter();

  // The random stream of dropout for sequence `index` of the next ForwardBackward, or of one
  // `later`.
  uint64_t stream(int64_t index, int64_t later = 0) const;
  // Adds a successful ForwardBackward's number of tokens, as its loss counts them: a step divides
  // by the sum.
  void count(double num_tokens);

  // False: all gradients are zero.
  bool has_gradients() const { return pending_ > 0; }
  // Error kConflict: the gradients have been clipped, and more would be of another scale.
  void require_unclipped() const;
  // False: a sum of the accumulated gradients has overflowed, of those that this rank has.
  bool gradients_finite();
  // The gradients as they are, to go back to when an operation fails.
  struct Snapshot {
    std::vector<at::Tensor> grads;  // undefined: zero
  };
  Snapshot snapshot();
  void restore(Snapshot snapshot);  // takes its tensors: memory may be what is short

  StepResult step(const Step& operation);
  StepResult clip(const ClipGradNorm& operation);
  void zero_grad();
  InspectResult inspect(bool tensors);

  // The training state that a Save with `optimizer` writes next to the weights: the tensors of one
  // safetensors file, of those that this rank has, and JSON; with or without the accumulated
  // gradients. And back.
  std::vector<std::pair<std::string, at::Tensor>> training_tensors(bool gradients);
  Json training_fields(bool gradients);
  // Takes what was read for a tenant of these parameters. On a CPU it cannot fail.
  void load_training(TrainingState state);
  // Full mode: replaces all weights, in the decoder's order; of several ranks each gives its runs,
  // and they tell each other. On a CPU it cannot fail, and reset_training, which must follow,
  // cannot anywhere.
  void load_weights(const std::vector<at::Tensor>& weights);
  // After the weights were replaced: drops gradients and optimizer, refreshes what derives from
  // weights.
  void reset_training();

  // Bytes of its state in addition to the base model: weights, published ones too, gradients,
  // optimizer.
  int64_t num_bytes();
  // Bytes of its adapter as it was made, without gradients; 0: none. They are there or parked.
  int64_t adapter_bytes() const { return adapter_bytes_; }
  // True: a Sample that runs, or a save that is being written, reads its weights.
  bool is_read() const;
  // All of that, to be taken out of memory and put back before the next use, in one order;
  // undefined ones are to stay so. Empty: is_read(), or there is no adapter. What derives from the
  // weights is dropped.
  std::vector<at::Tensor*> movable_tensors();
  // After they were taken out, and after they were put back: what experts share follows.
  void link_shared();

  // The parameters, with the sums of gradients since the last step, of those that this rank has.
  std::vector<optim::Param> params();

 private:
  // State of all ranks, which call them together: params(), and the optimizer's tensors by name,
  // one after the other.
  void visit_params(const std::function<void(const optim::Param&)>& see);
  void visit_moments(const std::function<void(const std::string&, const at::Tensor&)>& see);
  at::Tensor whole(size_t param, const at::Tensor& mine, at::IntArrayRef sizes) const;
  const optim::Peers& peers() const;
  std::map<std::string, size_t> param_indices();  // indices of params(), by name
  std::vector<at::Tensor> grads();                // undefined: zero
  std::vector<std::string> grad_names();          // names of the same gradients
  std::vector<lora::Adapter*> adapters();         // the present one and those of published versions
  struct Change {
    double scale = 1, norm = 0;
  };
  // The accumulated gradients' scale and norm, by their divisor and the clip to max_norm.
  Change scaled(double num_tokens, double max_norm, double norm_type);
  void require_trainable(const char* what) const;
  void weights_changed();

  std::string name_;
  Mode mode_;
  lora::AdapterRef pin_;
  int64_t adapter_bytes_ = 0;
  std::map<int64_t, lora::AdapterRef> published_;
  int64_t num_published_ = 0;  // ever
  uint64_t seed_;
  model::Decoder& decoder_;
  lora::Pool& pool_;
  Owners owners_;
  // Full mode of several ranks, which have a run of every weight each; else null.
  std::unique_ptr<parallel::TrainedWeights> parts_;
  std::optional<RunPeers> peers_;  // peers for the same gradients
  // Full mode: all weights of the decoder, and, in their order, the float32 ones that are stepped,
  // or this rank's runs of them.
  std::vector<model::NamedWeight> weights_;
  std::vector<at::Tensor> masters_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  Json options_ = JsonObject{};  // the optimizer's, of the last step
  double num_tokens_ = 0;
  int64_t calls_ = 0;    // ForwardBackwards that succeeded, ever
  int64_t pending_ = 0;  // those since the last step
  // Since the last step the sums were divided by num_tokens_ and clipped; it is 1 now.
  bool clipped_ = false;
};

}  // namespace twinkle::engine
