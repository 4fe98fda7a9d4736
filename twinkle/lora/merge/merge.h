// Adapters merged into the weights of their base model: W + scale * B A, summed in float32. The
// base's files are read and never written, so a base without the adapter is those files, bit for
// bit: nothing is subtracted, which rounds. For checkpoints whose linears are matrices of their own
// names, as those of llama, qwen2 and qwen3 are. Any thread.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "twinkle/io/checkpoint.h"

namespace twinkle::lora {

enum class MergedType {
  kStored,   // as the base has the weight: the sum is rounded once
  kFloat32,  // the sum as it is
};

// The tensors of `base` in the order of its names. Those that the adapter in a PEFT directory
// targets are merged ones, of which rows are computed as they are read; the others are the base's.
// "lm_head.weight" is added last where the adapter targets the head and the base's is tied to the
// embedding. Error: as read_adapter's; when it is read, kInvalid: a merged weight has no finite
// value in its type.
std::vector<StoredTensor> merged(const Checkpoint& base, const std::filesystem::path& adapter,
                                 MergedType type);

}  // namespace twinkle::lora
