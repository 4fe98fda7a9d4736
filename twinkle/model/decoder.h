// The one skeleton: embedding, layers of two blocks each (blocks/block.h), a final norm. It owns
// the only copy of the base weights. Knows neither what is in a block, adapters (they come in by
// nn::Linear's seam), losses, tenants nor the mesh. One thread at a time. For training a layer is a
// detached segment of autograd: its input starts a graph of its own, and backward() walks the
// segments in reverse. Gradients of trained weights go to their WeightGrad, never through .grad. T
// tokens of all sequences packed into one row, D width, V vocabulary.
#pragma once
#include <ATen/core/Tensor.h>

#include <atomic>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/io/checkpoint.h"
#include "twinkle/model/blocks/layer.h"
#include "twinkle/model/borders.h"
#include "twinkle/model/spec.h"
#include "twinkle/model/weights/weight_source.h"

namespace twinkle::model {

struct Batch {
  at::Tensor input_ids;  // [T] int64
  nn::Rows rows;
  KvCache* kv =
      nullptr;  // not owned; for sampling: keys and values are appended and the past is attended to
  // Not owned. Once it is true, the next layer is not begun: Stopped is thrown.
  const std::atomic<bool>* stop = nullptr;
  // Orders to the routers of these rows, and their answers. Null: none.
  std::shared_ptr<nn::Routing> routing = nullptr;
};

// Thrown when all of a batch has been cancelled.
struct Stopped : std::exception {
  const char* what() const noexcept override { return "model: stopped"; }
};

// The activations of a batch, which forward_train keeps for backward.
struct Tape {
  struct Segment {
    at::Tensor in, out;  // out undefined: backward computes the layer again
  };
  Batch batch;  // the segments point into it: a Tape is not moved between forward and backward
  std::vector<Segment> segments;
};

// The causal model's head among linears(), tied to the embedding or not.
inline constexpr const char* kHead = "lm_head";

// The name of a value head's bias in a checkpoint; transformers' sequence classifiers have none.
inline constexpr const char* kValueBias = "score.bias";

class Decoder {
 public:
  // Takes the weights in `dtype` (float32, bfloat16; float64 for tests) to `device`, where it all
  // runs; batches come from the CPU. Errors name the tensor that is missing or whose shape is not
  // the spec's. `borders` outlive it.
  Decoder(const DecoderSpec& spec, const Checkpoint& checkpoint, at::ScalarType dtype,
          at::Device device = at::kCPU, Borders& borders = no_borders());

  const DecoderSpec& spec() const { return spec_; }
  at::ScalarType dtype() const { return dtype_; }
  at::Device device() const { return device_; }

  // Both return the final norm's output [T, D]; the first keeps nothing.
  at::Tensor forward(const Batch& batch);
  // Makes room for rows of rope's table below `count`, before forward() gets a batch on the device,
  // whose positions the host cannot read. Error kInvalid: the model has fewer.
  void reserve_positions(int64_t count);
  // True if forward() keeps the threads awake, as kernels::with_team does; a caller that continues
  // with its output may open the team around both.
  bool keeps_team() const;
  at::Tensor forward_train(Tape& tape);  // brings the tape's batch to the device
  // dhidden [T, D]. Adds every gradient to its buffer and empties the tape.
  void backward(Tape& tape, const at::Tensor& dhidden);
  // The work of forward() or forward_train(), and backward(), at the borders of pieces, without
  // rows: of a rank that has none where others have some.
  void walk_forward();
  void walk_backward();

  // Bytes of activations that forward_train may keep; 0: no limit. As many layers as fit keep their
  // graphs, the last ones first; of the others only the inputs stay, and backward computes those
  // layers again, which takes time and changes no bit. The inputs stay even where they alone exceed
  // the limit. Not counted: what one layer and the head take while they run. Error kInvalid: below
  // 0.
  void limit_activations(int64_t bytes);
  int64_t activation_limit() const { return activation_limit_; }
  // The bytes that forward_train keeps of this batch without a limit, and the most that a layer's
  // backward keeps besides. Like states(), of the weights as they are here, which may be a part of
  // what the spec says.
  int64_t activation_bytes(const Batch& batch) const;
  // Layers that backward has computed again so far. Any thread.
  int64_t num_recomputed_layers() const { return num_recomputed_; }

  // The state that sampling keeps of a sequence in each layer.
  std::vector<StateSpec> states() const;

  // V x D and its gradient buffer; a value head is 1 x D and has a bias. Its values are there while
  // it is in use. `learns`: backward() follows.
  const nn::Linear& head() const { return head_; }
  InUse use_head(bool learns = false) const;
  // True if the values of all weights are there, in use or not.
  bool has_all() const;
  // Calls `see` of every weight, in the order of weights(), while its values are there.
  void visit_weights(const std::function<void(const NamedWeight&)>& see) const;

  // exact: a row's bits do not depend on the other rows of a batch. Every product of forward and
  // backward is tested for it; Error kInternal: one fails.
  void set_exact(bool exact);

  // Every linear that an adapter may attach to, in the model's order.
  const std::vector<NamedLinear>& linears() { return linears_; }
  // Every weight, in the checkpoint's names; a tied head only once.
  const std::vector<NamedWeight>& weights() { return weights_; }
  // The checkpoint's tensors that are no weights and belong to the model all the same: what its
  // layout skips, and constants. A save copies them.
  const std::vector<std::string>& kept() const { return kept_; }
  // The piece of each weight, as Borders number them.
  const std::vector<size_t>& pieces() const { return pieces_; }

  // From here until freeze() every weight has a gradient buffer. `completed(piece)`: called once in
  // a backward, or walk_backward(), when it has added all that it adds to the piece's gradients,
  // last of the embedding's; the piece may be gone again.
  using Completed = std::function<void(size_t piece)>;
  void train_all(Completed completed = {});
  void freeze();
  // d loss / d weight summed since zero_grads(), or undefined when nothing was added. Same order as
  // weights().
  std::vector<at::Tensor> grads();
  void zero_grads();
  // The gradient of weights()[index], which is zero from here on; undefined: it is zero.
  at::Tensor take_grad(size_t index);
  // The buffers themselves, one for every use of a weight (a tied head has its own), to keep and to
  // put back.
  std::vector<at::Tensor> buffers() const;
  void set_buffers(const std::vector<at::Tensor>& sums);

 private:
  InUse use_embedding() const;
  InUse use_layer(size_t index, bool backward) const;
  at::Tensor embed(const Batch& batch) const;
  // The two terms of a layer's output.
  struct Residual {
    at::Tensor x_TD, delta_TD;
  };
  Residual run_layer(size_t index, const at::Tensor& x_TD, const at::Tensor& normed_TD,
                     const Batch& batch);
  at::Tensor run_segment(size_t index, const at::Tensor& x_TD, const Batch& batch);
  int64_t stream_bytes(const Batch& batch) const;    // bytes that one layer hands the next
  int64_t input_bytes(const Batch& batch) const;     // bytes of all segments' inputs
  int64_t backward_bytes(const Batch& batch) const;  // bytes of the layer with the most
  int64_t graph_bytes(size_t index,
                      const Batch& batch) const;  // for one layer, without in and out
  size_t first_kept(const Batch& batch) const;
  void add_embedding_grad(const Batch& batch, const at::Tensor& dx_TD);
  bool embedding_is_head() const;
  void complete(size_t piece) const;
  nn::WeightGrad* buffer();
  void grow_rope(const Batch& batch);
  nn::RopeTable rope_table(const nn::RopeSpec& spec, int64_t rows) const;
  void make_ropes(int64_t rows);
  void to_device(Batch& batch) const;

  DecoderSpec spec_;
  at::ScalarType dtype_;
  at::Device device_;
  Borders& borders_;
  size_t embedding_piece_ = 0;
  at::Tensor embedding_;  // [V, D]
  nn::WeightGrad* embedding_grad_ = nullptr;
  std::deque<Layer> layers_;
  nn::RmsNorm final_norm_;
  nn::Linear head_;
  std::vector<NamedWeight> weights_;
  std::vector<size_t> pieces_;  // where pieces begin in weights_
  std::vector<NamedLinear> linears_;
  std::vector<std::string> kept_;
  nn::RopeTable rope_, local_rope_;  // the second only where the spec has one
  double embed_scale_ = 1;           // as the embedding's type has it
  std::vector<std::unique_ptr<nn::WeightGrad>> buffers_;
  Completed completed_;
  int64_t activation_limit_ = 0;
  std::atomic<int64_t> num_recomputed_ = 0;
};

// Where the decoder's constructor takes its weights from. A value head that is added to a causal
// model begins at zero, and so does a classifier's bias that is not in its checkpoint.
WeightSource weights_of(const DecoderSpec& spec, const Checkpoint& checkpoint,
                        at::ScalarType dtype);

}  // namespace twinkle::model
