#include "twinkle/loss/formula.h"

#include <torch/csrc/autograd/autograd.h>

namespace twinkle::loss {

Output differentiate(const Inputs& inputs, const Formula& formula, double num_tokens) {
  const at::AutoGradMode enabled(true);
  const at::Tensor logprobs = inputs.logprobs.detach().requires_grad_(true);
  const at::Tensor loss = formula(logprobs);
  require(loss.defined() && loss.numel() == 1, Code::kInvalid,
          "loss: the formula's result has shape ",
          loss.defined() ? loss.sizes() : at::IntArrayRef{}, ", it must be a scalar");
  Output out{.loss = loss.item<double>(), .num_tokens = num_tokens};
  if (loss.requires_grad())
    out.grad = torch::autograd::grad({loss}, {logprobs}, {}, false, false, true).at(0);
  out.grad = out.grad.defined() ? out.grad.contiguous() : at::zeros_like(inputs.logprobs);
  return out;
}

}  // namespace twinkle::loss
