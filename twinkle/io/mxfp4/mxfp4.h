// gpt-oss's mxfp4 weights (OCP Microscaling Formats 1.0, section 5.3; OpenAI 2025, section 2.1): of
// a stack of experts' matrices NAME [E, in, out] the transposes, 32 inputs a block: NAME_blocks U8
// [E, out, in / 32, 16], two values of four bits a byte, the lower half first, and NAME_scales U8
// [E, out, in / 32], each block's power of two. Private to io.
#pragma once
#include "twinkle/io/checkpoint_source.h"

namespace twinkle {

// Puts in place of each pair one tensor of BF16, in which every value is exact, and which is read
// when it is asked for; and takes quantization_config out of the config. Nothing where the config's
// model_type is not gpt_oss or its quant_method another: what is left in it is refused by whoever
// reads that. Error kInvalid: half of a pair, one beside the tensor that it is, or of another shape
// or type.
void dequantise_mxfp4(Checkpoint::Source& source);

// The BF16 number of a value's four bits, 0 to 15, by a block's scale: (0, 0.5, 1, 1.5, 2, 3, 4 or
// 6, of either sign) x 2^(scale - 127). Infinite beyond BF16's range; a scale of 255 is NaN.
uint16_t mxfp4_value(uint8_t bits, uint8_t scale);

}  // namespace twinkle
