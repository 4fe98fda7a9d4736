// For losses without a derivative in closed form: write the formula on tensors, autograd does the
// rest, on vectors of N numbers.
#pragma once
#include <functional>

#include "twinkle/loss/loss.h"

namespace twinkle::loss {

// logprobs [N] float32, requires_grad -> a scalar. Sum with sequence_sums() of reduce.h, so that
// the loss does not depend on the number of threads.
using Formula = std::function<at::Tensor(const at::Tensor& logprobs)>;

// The formula's value at inputs.logprobs and its gradient there. Error kInvalid: not a scalar.
Output differentiate(const Inputs& inputs, const Formula& formula, double num_tokens);

}  // namespace twinkle::loss
