// The auxiliary loss of routed experts, which grows as a few of them get most tokens: of each
// sequence of one pass alone, so that it depends neither on the other sequences nor on how a batch
// is cut. Routers note their choices in the forward pass, and add the loss's gradient to theirs in
// the backward pass, which must begin after the forward pass of all layers: the gradient of one
// needs the counts of all. It keeps 16 bytes for each layer, sequence and expert. Knows neither
// adapters nor tenants; autograd does not see it. One thread, the decoder's. Of a sequence: T
// tokens, E experts, k of them for a token, L layers with experts; c_le of its tokens chose expert
// e in layer l, and p_lte is the softmax of the router's logits.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "twinkle/kernels/experts/balance.h"

namespace twinkle::nn {

enum class AuxLoss {
  kNone,
  // E sum over e of f_e P_e, f_e = (sum over l of c_le) / (L T), P_e the mean of p_lte over layers
  // and tokens: k where all get as many (Fedus et al. 2021, eq. 4 to 6, as transformers'
  // load_balancing_loss_func has it for all layers at once).
  kAllLayers,
  // The sum over layers of sum over e of f_le P_le, f_le = E c_le / (k T), P_le the mean of p_lte
  // over tokens: 1 for each layer where all get as many (DeepSeek-V2, section 2.2.3, expert
  // level; its code's seq_aux).
  kEachLayer,
};

class Balance {
 public:
  // coefficients [S]: of each sequence's auxiliary loss in what backward differentiates; 0: none.
  Balance(std::vector<int64_t> cu_seqlens, std::vector<double> coefficients)
      : cu_seqlens_(std::move(cu_seqlens)), coefficients_(std::move(coefficients)) {}

  // The choices of a layer's router in the forward pass: scores [T, E], softmax's, and ids [T, k]
  // of all rows. A layer that is computed again notes the same again.
  void note(size_t layer, AuxLoss form, const at::Tensor& scores, const at::Tensor& ids);
  // Adds the gradient by the layer's logits to dlogits [T, E].
  void add_grad(size_t layer, const at::Tensor& scores, const at::Tensor& dlogits) const;

  // The loss of the sequence, without its coefficient, after the forward pass.
  double loss(size_t sequence) const;

 private:
  struct Layer {
    AuxLoss form;
    int64_t experts, top_k;
    kernels::ChoiceSums sums;
  };
  // d the sequence's loss / d each of p_lt, which is the same for all its tokens: [E].
  std::vector<double> slopes(size_t layer, size_t sequence) const;

  std::vector<int64_t> cu_seqlens_;   // [S + 1]
  std::vector<double> coefficients_;  // [S]
  std::map<size_t, Layer> layers_;
};

}  // namespace twinkle::nn
