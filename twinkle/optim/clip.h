// The norm of all gradients, and the factor that limits it, which goes into the optimizer's
// grad_scale; only scale() writes.
#pragma once
#include <span>

#include "twinkle/optim/optimizer.h"
#include "twinkle/optim/peers.h"

namespace twinkle::optim {

// (sum |grad * grad_scale|^norm_type)^(1/norm_type) over all elements, in double and in one order,
// so that it depends neither on threads nor on which parameters' gradients are undefined; an
// infinite norm_type is the largest magnitude. Error kInvalid: norm_type not above 0, or a norm
// that is not finite (it names the first parameter to blame). Every one of `peers` calls it, and
// gets the same.
double grad_norm(std::span<const Param> params, double norm_type = 2.0, double grad_scale = 1.0,
                 const Peers& peers = Peers());

// True if every entry of these gradients is finite; undefined gradients are. One pass over them.
bool finite(std::span<const at::Tensor> grads);

// min(1, max_norm / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_; 1 for infinity.
// Error kInvalid: max_norm is negative or NaN.
double clip_factor(double norm, double max_norm);

// Multiplies float32 gradients by the factor; undefined ones are zero, and stay so. On the CPU it
// takes no memory and so cannot fail midway.
void scale(std::span<const at::Tensor> grads, double factor);

}  // namespace twinkle::optim
