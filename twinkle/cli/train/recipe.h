// A recipe as the engine and a state's file have it.
#pragma once
#include <string>

#include "twinkle/base/json.h"
#include "twinkle/cli/train/training.h"
#include "twinkle/data/dataset.h"
#include "twinkle/optim/schedules/schedule.h"

namespace twinkle::cli {

// PEFT's adapter_config.json; empty: all weights are trained.
std::string lora_json(const TrainingOptions& options);
// A run has `steps` in all.
optim::Schedule schedule_of(const Recipe& recipe, int64_t steps);

// The options that determine a run's weights, by their flags, and its rows: a resumed run must have
// the same. --epochs is among them where the schedule depends on it; else it may grow.
JsonObject settings_of(const TrainingOptions& options, const data::Dataset& rows);
// Error kConflict: `now` differs from those of the run in `folder`, by the first that does.
void check_settings(const JsonObject& now, const Json& then, const TrainingOptions& options,
                    const std::string& folder);

// A line for the user where so few steps teach little; empty: they are enough.
std::string advice_on(const TrainingOptions& options, int64_t steps);

}  // namespace twinkle::cli
