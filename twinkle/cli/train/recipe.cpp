#include "twinkle/cli/train/recipe.h"

#include <sstream>

#include "twinkle/cli/model_path.h"
#include "twinkle/cli/train/objective.h"

namespace twinkle::cli {
namespace {

// Steps that teach a small model a few facts, at a small rate and at --lr 1e-3.
constexpr int64_t kEnoughSteps = 60, kEnoughFastSteps = 20;

Json targets(const std::string& names) {
  if (names.find(',') == names.npos && names == "all-linear") return Json(names);
  JsonArray list;
  std::istringstream stream(names);
  for (std::string name; std::getline(stream, name, ',');) list.emplace_back(name);
  return list;
}

}  // namespace

std::string lora_json(const TrainingOptions& o) {
  if (o.recipe.full) return "";
  JsonObject out{{"r", o.recipe.rank},
                 {"lora_alpha", o.recipe.alpha},
                 {"target_modules", targets(o.recipe.target_modules)},
                 {"base_model_name_or_path", model_name(o.model)},
                 {"peft_type", "LORA"}};
  if (o.goal.loss == "reward") {
    out["task_type"] = "SEQ_CLS";
    out["num_labels"] = 1;
  }
  return boost::json::serialize(out);
}

optim::Schedule schedule_of(const Recipe& recipe, int64_t steps) {
  if (recipe.lr_schedule == "constant") {
    return [warmup = recipe.warmup_steps](double lr, int64_t step) {
      return step < warmup ? lr * static_cast<double>(step + 1) / static_cast<double>(warmup) : lr;
    };
  }
  const char* name =
      recipe.lr_schedule == "linear" ? "LinearWarmupScheduler" : "CosineWarmupScheduler";
  return optim::make_schedule(
      name, JsonObject{{"num_warmup_steps", recipe.warmup_steps}, {"num_training_steps", steps}});
}

JsonObject settings_of(const TrainingOptions& o, const data::Dataset& rows) {
  JsonObject settings{{"--loss", o.goal.loss},
                      {"the loss's options", o.loss_options},
                      {"--full", o.recipe.full},
                      {"--preprocessor", o.files.preprocessor},
                      {"--columns", o.files.columns},
                      {"--max-length", o.recipe.max_length},
                      {"--batch-size", o.recipe.batch_size},
                      {"--seed", o.recipe.seed},
                      {"--lr", o.recipe.lr},
                      {"--lr-schedule", o.recipe.lr_schedule},
                      {"--warmup-steps", o.recipe.warmup_steps},
                      {"--max-grad-norm", o.recipe.max_grad_norm}};
  if (o.recipe.lr_schedule != "constant") settings["--epochs"] = o.recipe.epochs;
  if (!o.recipe.full) {
    settings["--rank"] = o.recipe.rank;
    settings["--alpha"] = o.recipe.alpha;
    settings["--target-modules"] = o.recipe.target_modules;
  }
  if (o.goal.loss == "grpo") {
    settings["--reward"] = o.goal.reward;
    settings["--num-generations"] = o.goal.num_generations;
    settings["--max-tokens"] = o.goal.max_tokens;
    settings["--temperature"] = o.goal.temperature;
  }
  settings["data"] = fingerprint(rows);  // last: the options above may be why it differs
  return settings;
}

void check_settings(const JsonObject& now, const Json& then, const TrainingOptions& o,
                    const std::string& folder) {
  for (const auto& [name, value] : now) {
    const Json* theirs = find(then, name);
    const std::string given = boost::json::serialize(value);
    const std::string kept = theirs ? boost::json::serialize(*theirs) : "not there";
    if (given == kept) continue;
    require(name != "data", Code::kConflict, "cli: --resume: the rows of ", o.data,
            " are not those that the run in ", folder,
            " was trained on; give its file, or --overwrite to start again");
    require(name != "--epochs", Code::kConflict, "cli: --resume: --epochs is ", given,
            ", that of the run in ", folder, " is ", kept, ", and its --lr-schedule ",
            o.recipe.lr_schedule,
            " has gone down to the end of these; only constant can be prolonged. Give the same, or "
            "--overwrite to start again");
    fail(Code::kConflict, "cli: --resume: ", std::string_view(name), " is ", given,
         ", that of the run in ", folder, " is ", kept,
         "; give the same, or --overwrite to start again");
  }
}

std::string advice_on(const TrainingOptions& o, int64_t steps) {
  const bool is_fast = !o.recipe.full && o.recipe.lr >= 1e-3;
  const int64_t enough = is_fast ? kEnoughFastSteps : kEnoughSteps;
  if (o.recipe.warmup_steps >= steps)
    return "--warmup-steps is " + std::to_string(o.recipe.warmup_steps) + " and the run has " +
           std::to_string(steps) + " steps: the rate has not risen to --lr";
  if (steps >= enough || o.goal.loss != "sft") return "";
  const int64_t a_pass = (steps + o.recipe.epochs - 1) / o.recipe.epochs;
  std::ostringstream out;
  out << steps << (steps == 1 ? " step" : " steps") << " in all: too few to learn new facts; try ";
  out << "--epochs " << (enough + a_pass - 1) / a_pass;
  if (!o.recipe.full && !is_fast) out << " --lr 1e-3";
  return out.str();
}

}  // namespace twinkle::cli
