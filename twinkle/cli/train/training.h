// `twinkle train`: training of one tenant in a folder of its own, with states from which it resumes
// bit for bit. Knows no command line.
#pragma once
#include <cstdint>
#include <string>
#include <tuple>

#include "twinkle/base/fields/options.h"
#include "twinkle/base/json.h"
#include "twinkle/engine/options.h"

namespace twinkle::cli {

inline constexpr const char* kTenant = "me";  // that trains

// The command line, its help, YAML files and docs/options.md take these from their lists.
struct TrainingFiles {
  std::string output;        // the run's folder; empty: a new one, named by the data
  bool overwrite = false;    // an earlier run there may be replaced
  bool resume = false;       // continue from the state there
  std::string validation;    // a file of rows whose loss is measured; empty: none
  std::string preprocessor;  // for data and validation; empty: by their columns
  std::string columns;       // new names of columns, "question=prompt,answer=completion"
  std::string report_to;     // trackers, separated by commas; empty: none

  static constexpr auto fields() {
    using F = TrainingFiles;
    return std::tuple{
        option("output", &F::output, any(),
               "folder of the run [outputs/NAME-1, -2, ..., NAME as the data's]"),
        option("overwrite", &F::overwrite, any(), "replace an earlier run in --output"),
        option("resume", &F::resume, any(),
               "continue the run in --output, else in outputs/latest, bit for bit, with its own "
               "options; more --epochs prolong it"),
        option("validation", &F::validation, any(), "rows whose loss is reported at the end"),
        option("preprocessor", &F::preprocessor, any(),
               "makes messages of rows that have none; twinkle train --help names those there are "
               "[by the rows' columns]"),
        option("columns", &F::columns, any(),
               "new names of columns: question=prompt,answer=completion"),
        option("report_to", &F::report_to, any(),
               "tensorboard, wandb, swanlab, or several, separated by commas")};
  }
};

// The objective. Its loss's own options, such as beta, are TrainingOptions::loss_options.
struct Goal {
  std::string loss = "sft";
  std::string reward;  // FILE.py:NAME, or a class of twinkle.reward
  double reward_seconds = 60;
  int64_t num_generations = 8, max_tokens = 256;
  double temperature = 1;

  static constexpr auto fields() {
    using G = Goal;
    return std::tuple{
        option("loss", &G::loss,
               one_of("sft", "pretrain", "dpo", "orpo", "simpo", "kto", "reward", "grpo"),
               "sft: the replies of chats; pretrain: texts; dpo, orpo, simpo: pairs of replies; "
               "kto: replies with a label; reward: a model that scores pairs; "
               "grpo: sampled replies, by their --reward"),
        option("reward", &G::reward, any(),
               "of grpo: FILE.py:NAME, a function of trajectories or a class of rewards, or the "
               "name of one in twinkle.reward"),
        option("reward_seconds", &G::reward_seconds, strictly_between(0, 86400),
               "time that a batch's rewards may take"),
        option("num_generations", &G::num_generations, between(2, 65536),
               "replies to a prompt that grpo samples"),
        option("max_tokens", &G::max_tokens, between(1, INT32_MAX),
               "longest reply that grpo samples, tokens"),
        option("temperature", &G::temperature, strictly_between(0, Limits::kNone),
               "of grpo's sampling")};
  }
};

struct Recipe {
  bool full = false;  // train every weight, no adapter
  int64_t rank = 8;
  double alpha = 16;
  std::string target_modules = "all-linear";
  double lr = 1e-4;
  std::string lr_schedule = "constant";  // linear and cosine: down to 0
  int64_t warmup_steps = 0;
  double max_grad_norm = 1;  // 0 and infinity do not clip
  int64_t batch_size = 8, epochs = 3, max_length = 1024;
  int64_t save_steps = 0, validation_steps = 0;
  uint64_t seed = 42;

  static constexpr auto fields() {
    using R = Recipe;
    constexpr Limits kCount = between(1, INT32_MAX), kSteps = between(0, INT32_MAX);
    constexpr Limits kNorm = {.least = 0, .one_of = {"inf"}};
    return std::tuple{
        option("full", &R::full, any(), "train all weights, no adapter"),
        option("rank", &R::rank, between(1, 4096), "rank of the adapter"),  // lora/'s limit
        option("alpha", &R::alpha, strictly_between(0, Limits::kNone), "its scale is alpha / rank"),
        option("target_modules", &R::target_modules, any(),
               "all-linear, or names of linears separated by commas: q_proj,v_proj"),
        option("lr", &R::lr, at_least(0),
               "AdamW's learning rate [1e-4; 5e-5 of preferences, 2e-5 of grpo; with --full 1e-5]"),
        option("lr_schedule", &R::lr_schedule, one_of("constant", "linear", "cosine"),
               "after the warm-up"),
        option("warmup_steps", &R::warmup_steps, kSteps, "steps in which the rate rises to --lr"),
        option("max_grad_norm", &R::max_grad_norm, kNorm,
               "longer gradients are scaled down to it; 0 and inf do not clip"),
        option("batch_size", &R::batch_size, kCount, "rows per step; of grpo prompts"),
        option("epochs", &R::epochs, kCount, "passes over the rows"),
        option("max_length", &R::max_length, kCount, "longest row, tokens"),
        option("save_steps", &R::save_steps, kSteps,
               "save a state every so many steps; 0: only at the end"),
        option("validation_steps", &R::validation_steps, kSteps,
               "report the loss of --validation every so many steps; 0: only at the end"),
        option("seed", &R::seed, between(0, kAnyBits),
               "of the row order, the adapter and grpo's replies")};
  }
};

struct TrainingOptions {
  std::string model, data;
  std::string device;  // empty: as device_or_default
  TrainingFiles files;
  Goal goal;
  JsonObject loss_options;  // that were given, as the engine's loss takes them
  Recipe recipe;
  engine::EngineOptions engine;  // but model and device
  std::string config;            // the run's config.yaml
};

// The result, for what can be typed next.
struct Trained {
  std::string folder;          // the run's
  std::string weights;         // the folder of the adapter or the model, in it
  std::string prompt, system;  // the first row's; may be empty
  bool plain = false;          // the prompt goes without a chat template
  std::string advice;          // one line where the run was too short to teach much, or empty
};

// Trains and saves; progress goes to standard error. Error kInvalid: data, model or output that
// cannot be used; kConflict: the output holds an earlier run, and neither overwrite nor resume is
// given, or resume is and that run was another; or an interrupt, after which the state was saved:
// the text ends with what resumes it. An error after a step names that; what was trained is saved
// then, too, if it can be, and a line says where. `program` is what the user typed to start the
// program. From the first step on it decides what signals do (interrupts.h); once it ends with an
// error, that error's text is their last words, so that its catcher calls end_on_interrupt() anew.
Trained run_training(const TrainingOptions& options, const std::string& program);

// For a shell, which reads it as one word.
std::string quoted(const std::string& text);

}  // namespace twinkle::cli
