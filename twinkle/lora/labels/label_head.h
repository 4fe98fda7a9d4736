// The head of labels that a tenant may have beside its adapter, transformers' "score": the logits
// W h of the final hidden state h of a sequence's last token. Every sum is float64 in the order of
// its entries, so that a sequence's bits do not depend on the others. T tokens of all sequences, D
// width, S sequences, n labels. Knows no loss.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "twinkle/lora/variants/kinds.h"

namespace twinkle::lora {

struct LabelHead {
  at::Tensor weight;  // W [n, D] float32 (or float64); undefined: there is none
  at::Tensor grad;    // sum since the last step, as the weight; undefined: zero

  bool defined() const { return weight.defined(); }
};

// Its name, in checkpoints and for the optimizer.
inline constexpr const char* kLabelWeight = "score.weight";
inline constexpr Kind kLabelKind{kLabelWeight};

// A new head's weight on the CPU, float32: uniform, with transformers' standard deviation of 0.02;
// the same for the same seed.
at::Tensor new_label_weight(int64_t num_labels, int64_t width, uint64_t seed);

// Logits [S x n] of the sequences whose last tokens are the rows `last` of hidden [T, D].
std::vector<float> label_logits(const LabelHead& head, const at::Tensor& hidden_TD,
                                const std::vector<int64_t>& last);

// Given d loss / d logits [S x n], adds W^T of it to the rows of dhidden [T, D].
void add_label_grads(const LabelHead& head, const std::vector<int64_t>& last,
                     std::span<const float> grads, at::Tensor& dhidden_TD);

// The part of one sequence, given its d loss / d logits [n]: adds its product with h to the head's
// gradient, which is there, rounded once.
void add_weight_grad(LabelHead& head, const at::Tensor& hidden_TD, int64_t last,
                     std::span<const float> grads);

}  // namespace twinkle::lora
