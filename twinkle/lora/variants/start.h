// First values of an adapter's tensors on one linear, as peft's init_lora_weights has them.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "twinkle/io/peft/peft.h"

namespace twinkle::lora {

struct StartSize {
  int64_t rank;
  double scale;
};

// In the order of kinds_of(): of a weight [O, I], in float32 or its float64. Empty: A uniform in
// +-1/sqrt(I) (PEFT's kaiming_uniform with a = sqrt(5)); "gaussian": A normal with deviation 1/r;
// B is zero. "pissa": B A is 1/scale of the weight's part of its largest r singular values, of
// which each factor has the square roots; "pissa_niter_N": the same of a random subspace after N
// power iterations (Halko et al. 2011, as torch.svd_lowrank). DoRA's magnitudes are the norms of
// the weight's rows. The same for the same key; without
// one, zeros. Error kInvalid: another init, and PiSSA with a rank above the matrix's.
std::vector<at::Tensor> start_of(const PeftConfig& config, std::optional<uint64_t> key,
                                 const at::Tensor& weight, const StartSize& size);

}  // namespace twinkle::lora
