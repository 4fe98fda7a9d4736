// Checks that every function over parameters makes.
#pragma once
#include <span>

#include "twinkle/optim/optimizer.h"

namespace twinkle::optim {

// Error kInvalid, naming the parameter: a value or gradient that is not contiguous float32 on the
// device of the first one's value, a gradient of another shape, two parameters of one name.
void check(std::span<const Param> params);

}  // namespace twinkle::optim
