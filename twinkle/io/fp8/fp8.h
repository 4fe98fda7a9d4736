// DeepSeek-V3's FP8 weights: float8 e4m3 and, of each block of them, a factor, F32 or BF16,
// NAME_scale_inv [rows / block rows, columns / block columns], both rounded up: blocks at the edges
// are cut. (DeepSeek-V3, section 3.3; config.json's quantization_config.) Private to io.
#pragma once
#include "twinkle/io/checkpoint_source.h"

namespace twinkle {

// Puts in place of each FP8 tensor and its factors one of F32, which is read when it is asked for,
// and takes quantization_config out of the config. Nothing where there is no FP8 tensor. Error
// kInvalid: no factors, or of another shape or type; a quantization_config of another kind.
void dequantise_fp8(Checkpoint::Source& source);

// Finite but for 0x7F and 0xFF, which are NaN. (Micikevicius et al. 2022, table 1)
float e4m3_value(uint8_t bits);

}  // namespace twinkle
