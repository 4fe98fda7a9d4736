// `twinkle train`: supervised fine-tuning of one tenant, with checkpoints from which it resumes bit
// for bit. Knows no command line.
#pragma once
#include <cstdint>
#include <string>
#include <tuple>

#include "twinkle/base/fields/options.h"
#include "twinkle/engine/options.h"

namespace twinkle::cli {

// The command line, its help and docs/options.md take these two from their lists.
struct TrainingFiles {
  std::string output;        // empty: the command's default
  bool overwrite = false;    // an earlier run's output may be replaced
  bool resume = false;       // continue from the checkpoint in `output`
  std::string validation;    // a file of rows whose loss is measured; empty: none
  std::string preprocessor;  // for data and validation; empty: by their columns
  std::string columns;       // new names of columns, "question=prompt,answer=completion"

  static constexpr auto fields() {
    using F = TrainingFiles;
    return std::tuple{
        option("output", &F::output, any(),
               "directory to write [outputs/adapter, with --full outputs/model]"),
        option("overwrite", &F::overwrite, any(), "replace an earlier run's output"),
        option("resume", &F::resume, any(), "continue from the state in --output, bit for bit"),
        option("validation", &F::validation, any(), "rows whose loss is reported at the end"),
        option("preprocessor", &F::preprocessor, any(),
               "makes messages of rows that have none; twinkle train --help names those there are "
               "[by the rows' columns]"),
        option("columns", &F::columns, any(),
               "new names of columns: question=prompt,answer=completion")};
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
  int64_t batch_size = 8, epochs = 1, max_length = 1024;
  int64_t save_steps = 0, validation_steps = 0;
  uint64_t seed = 42;

  static constexpr auto fields() {
    using R = Recipe;
    constexpr Limits kCount = between(1, INT32_MAX), kSteps = between(0, INT32_MAX);
    constexpr Limits kNorm = {.least = 0, .one_of = {"inf"}};
    return std::tuple{
        option("full", &R::full, any(), "train all weights, no adapter"),
        option("rank", &R::rank, kCount, "rank of the adapter"),
        option("alpha", &R::alpha, strictly_between(0, Limits::kNone), "its scale is alpha / rank"),
        option("target_modules", &R::target_modules, any(),
               "all-linear, or names of linears separated by commas: q_proj,v_proj"),
        option("lr", &R::lr, at_least(0), "AdamW's learning rate; 1e-5 by default with --full"),
        option("lr_schedule", &R::lr_schedule, one_of("constant", "linear", "cosine"),
               "after the warm-up"),
        option("warmup_steps", &R::warmup_steps, kSteps, "steps in which the rate rises to --lr"),
        option("max_grad_norm", &R::max_grad_norm, kNorm,
               "longer gradients are scaled down to it; 0 and inf do not clip"),
        option("batch_size", &R::batch_size, kCount, "rows per step"),
        option("epochs", &R::epochs, kCount, "passes over the rows"),
        option("max_length", &R::max_length, kCount, "longest row, tokens"),
        option("save_steps", &R::save_steps, kSteps,
               "save a state every so many steps; 0: only at the end"),
        option("validation_steps", &R::validation_steps, kSteps,
               "report the loss of --validation every so many steps; 0: only at the end"),
        option("seed", &R::seed, between(0, kAnyBits), "of the row order and of the adapter")};
  }
};

struct TrainingOptions {
  std::string model, data;
  std::string device;  // empty: as device_or_default
  TrainingFiles files;
  Recipe recipe;
  engine::EngineOptions engine;   // but model and device
  std::string command_to_resume;  // the command that resumes after an interrupt
};

// Trains and saves; progress goes to standard error. Error kInvalid: data, model or output that
// cannot be used; kConflict: the output holds an earlier run, and neither overwrite nor resume is
// given, or resume is and that run was another; or an interrupt, after which the state was saved.
// From the first step on it decides what signals do (interrupts.h); once it ends with an error,
// that error's text is their last words, so that its catcher calls end_on_interrupt() anew.
void run_training(const TrainingOptions& options);

}  // namespace twinkle::cli
