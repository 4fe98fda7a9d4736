// The parts of a decoder: every weight by its name in the checkpoint, every linear that an adapter
// may attach to by its path there. Blocks say Hugging Face's names of llama, and the family's
// layout makes the checkpoint's of them. A block adds its own, each once, when it is made. What
// goes over all weights or linears (gradient buffers, optimizers, files, adapters) reads these
// lists. The parts must stay where they are.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "twinkle/model/spec.h"
#include "twinkle/nn/linear.h"
#include "twinkle/nn/norm.h"

namespace twinkle::model {

struct NamedLinear {
  std::string path;  // "model.layers.0.self_attn.q_proj"
  nn::Linear* linear;
  bool drops = true;  // false: adapters have no dropout here
  // True for an expert's matrix: its stack is [E, inputs, outputs], and gates and ups take turns in
  // gate_up_proj.
  bool turned = false;
};

struct NamedWeight {
  std::string name;       // as in the checkpoint: "model.norm.weight"
  at::Tensor* value;      // in the decoder's dtype, or float32 where the layout says so
  bool decay;             // true if weight decay applies: not to norms and biases
  nn::WeightGrad** grad;  // its buffer's place in the linear or norm; the decoder fills it
};

struct LinearSize {
  int64_t outputs, inputs;
  bool bias = false;
};

class Parts {
 public:
  // Gives the weight of this name, as in the checkpoint, and shape, or throws.
  using Read =
      std::function<at::Tensor(const std::string& name, const std::vector<int64_t>& shape)>;
  // `constants`: reads what never learns, in float32; none: as weights.
  explicit Parts(Read read, Layout layout = {}, Read constants = {})
      : read_(std::move(read)),
        constants_(constants ? std::move(constants) : read_),
        layout_(std::move(layout)) {}

  std::string path;                  // path of the parts that follow: "model.layers.0."
  std::vector<NamedWeight> weights;  // in the order in which they were added
  std::vector<NamedLinear> linears;

  // Each reads the part's weights and lists it. Errors are those of `read`.
  void weight(const std::string& name, const std::vector<int64_t>& shape, bool decay,
              at::Tensor& value, nn::WeightGrad*& grad);
  void linear(const std::string& name, const LinearSize& size, nn::Linear& into, bool drops = true);
  void norm(const std::string& name, int64_t width, const NormSpec& spec, nn::RmsNorm& into);
  // Float32 whatever the decoder's type is, never trained and not among the weights; a save copies
  // the base's.
  void constant(const std::string& name, const std::vector<int64_t>& shape, at::Tensor& value);

 private:
  Read read_, constants_;
  Layout layout_;
};

}  // namespace twinkle::model
