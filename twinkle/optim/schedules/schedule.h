// Learning rate schedules as pure functions of the number of updates already taken, equal to
// torch.optim.lr_scheduler's of the same name (in closed form, so they can be asked for any step).
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "twinkle/base/json.h"

namespace twinkle::optim {

// The learning rate of the update that comes after `step` updates, from the optimizer's own.
using Schedule = std::function<double(double base_lr, int64_t step)>;

// Names and options (with defaults where there are any):
//   constant
//   ConstantLR             factor=1/3 total_iters=5
//   LinearLR               start_factor=1/3 end_factor=1 total_iters=5
//   StepLR                 step_size gamma=0.1
//   ExponentialLR          gamma
//   CosineAnnealingLR      T_max eta_min=0; rises again after T_max, as torch's does
//   CosineWarmupScheduler  num_warmup_steps num_training_steps num_cycles=0.5
//   LinearWarmupScheduler  num_warmup_steps num_training_steps
// The last two are transformers' get_cosine_ and get_linear_schedule_with_warmup but for one thing:
// update `step` < num_warmup_steps has factor (step + 1) / num_warmup_steps, theirs step /
// num_warmup_steps, which makes the first update one with lr 0 and wastes its batch.
// Error kInvalid: unknown name or option (with the known ones), one missing or out of range.
Schedule make_schedule(std::string_view name, const Json& options = {});

std::vector<std::string_view> schedule_names();

}  // namespace twinkle::optim
