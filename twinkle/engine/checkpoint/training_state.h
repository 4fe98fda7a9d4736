// A tenant's training state in a checkpoint, in addition to its weights: trainer_state.json, and
// its tensors in training.safetensors, or, of several ranks, each one's in training-0000i-of-0000n.
// safetensors, with training.index.json, whose `weight_map` says which is where. Ranks that train
// all weights have a run of each tensor, whose name says which: "master/NAME[0:512]". What this
// rank needs is read into host memory before the tenant changes. Any thread.
#pragma once
#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "twinkle/base/json.h"
#include "twinkle/optim/optimizer.h"
#include "twinkle/parallel/run.h"

namespace twinkle::engine {

inline constexpr const char* kTrainingTensors = "training.safetensors";
inline constexpr const char* kTrainingIndex = "training.index.json";
inline constexpr const char* kTrainingPart = "training-";  // how a part's name begins
// The name of a save, in the metadata of its index and of each part: they are of one.
inline constexpr const char* kSave = "save";
inline constexpr const char* kTrainingFields = "trainer_state.json";
inline constexpr int64_t kMaxCount = int64_t{1}
                                     << 53;       // limit of any count; more than any run counts
inline constexpr int64_t kCheckpointVersion = 5;  // the only one that is read

std::string training_part(int rank, int num_ranks);  // the name of its file
// The name of a run of a tensor.
std::string name_of_run(const std::string& tensor, const parallel::Run& run);

struct NamedShape {
  std::string name;
  std::vector<int64_t> shape;
};

// Names and shapes of one tenant's state.
struct TrainingShape {
  std::vector<NamedShape> params;  // in the tenant's order
  // Their sums: as the parameters, and one more of a tied head.
  std::vector<NamedShape> gradients;
  bool masters = false;  // float32 weights that steps are taken from
  // The elements of each parameter that are read, [elements]; empty: all, in its shape.
  std::vector<parallel::Run> runs;
  // The data ranks' numbers along the axes, where results depend on them; else null.
  Json mesh;
};

struct TrainingState {
  std::unique_ptr<optim::Optimizer> optimizer;  // null: no step has been taken
  Json options = JsonObject{};                  // the optimizer's
  std::vector<at::Tensor> gradients;            // undefined: zero
  std::vector<at::Tensor> masters;
  uint64_t seed = 0;
  int64_t calls = 0, pending = 0, published = 0;
  double num_tokens = 0;
  bool clipped = false;
  std::string extra;
};

// `tenant` is named in errors. `arithmetic`: that of this engine, when the checkpoint's has to be
// the same, and its mesh where results depend on it; or null. Names and shapes come before bytes,
// and only what is asked for is read. Error kNotFound: no such files; kInvalid: a field that no
// training leaves, a tensor that is missing, unknown, of another shape, or not finite, a part of
// another save. `reserve`: as of lora::read_adapter.
TrainingState read_training(const std::filesystem::path& directory, const TrainingShape& shape,
                            const std::string& tenant, const JsonObject* arithmetic,
                            const std::function<void(int64_t)>& reserve = {});

}  // namespace twinkle::engine
