// The arguments of the losses that scripts and requests name by their classes, and what a loss
// reads of them. A loss is one line of the table in arguments.cpp.
#pragma once
#include "twinkle/loss/arguments/labels.h"
#include "twinkle/loss/loss.h"

namespace twinkle::loss {

// A call of a loss, but for what the model says.
struct LossCall {
  std::string loss;    // its class's name
  std::string reader;  // opens errors: "loss: GRPOLoss"
  Json options;        // the loss's; null: defaults
  Arguments given;
  Labels labels;  // their first size alone counts for heads of labels
};

struct ArgumentsOf {
  std::string_view loss;                  // its class's name
  std::vector<std::string_view> rows;     // those of sequences, pairs or labels, as a call has them
  std::vector<std::string_view> numbers;  // options that a call may give, too
  Extras (*read)(const LossCall& call);   // null: the loss reads labels alone
};

const std::vector<ArgumentsOf>& all_arguments();

// The loss reads these besides labels, as Loss::extras (float64) or VectorExtras have them: of each
// label that counts [N], or of each sequence [B]; of vectors [N, K] float32 or int64. Error
// kInvalid: the loss is not in the table; an argument that it does not take, or needs; and as
// labels.h.
Extras extras_of(const LossCall& call);

// Indices [G] int64 of the sequences whose label is 1: each begins a group, anchor, positive,
// negatives. labels: [B], or [B, L] with one for each sequence at its first position. Error
// kInvalid: other labels, a first sequence that is no anchor, an anchor without a positive.
at::Tensor anchors_of(const at::Tensor& labels, const std::string& reader);

}  // namespace twinkle::loss
