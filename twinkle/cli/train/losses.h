// The losses of `twinkle train --loss`: which rows they learn from, which loss of the engine each
// is, and the options that it has there.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "twinkle/base/fields/options.h"
#include "twinkle/cli/train/training.h"

namespace twinkle::cli {

enum class RowKind {
  kChats,
  kTexts,
  kPairs,   // a chosen and a rejected reply
  kJudged,  // chats with a verdict on the reply
  kPrompts,
};
RowKind rows_of(std::string_view loss);

// "DPOLoss" of "dpo".
std::string loss_class(std::string_view loss);

// Options of all of these losses, from the engine's table. They set those of `into`, which outlives
// them and holds what was given.
std::vector<AnyOption> loss_options(JsonObject& into);
// The number that was given, or the loss's default.
double loss_number(const TrainingOptions& options, std::string_view name);

// The loss scores each batch with the base model, too.
bool needs_base(const TrainingOptions& options);
// Error kInvalid: options of another loss, or what the loss refuses; a base that --full changes.
void check_goal(const TrainingOptions& options);

}  // namespace twinkle::cli
