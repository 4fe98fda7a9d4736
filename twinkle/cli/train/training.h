// `twinkle train`: supervised fine-tuning of one tenant, with checkpoints from which it resumes bit
// for bit. Knows no command line.
#pragma once
#include <cstdint>
#include <string>

#include "twinkle/engine/options.h"

namespace twinkle::cli {

struct TrainingOptions {
  std::string model, data, output;
  std::string preprocessor;  // of data and validation; empty: none
  std::string validation;    // a file of rows whose loss is measured; empty: none
  std::string device;        // empty: as device_or_default
  bool full = false;         // train every weight, no adapter
  bool overwrite = false;    // an earlier run's output may be replaced
  bool resume = false;       // continue from the checkpoint in `output`
  int64_t rank = 8;
  double alpha = 16;
  std::string target_modules = "all-linear";  // or names of linears, separated by commas
  double lr = 1e-4, max_grad_norm = 1.0;
  std::string lr_schedule = "constant";  // after the warm-up; or "linear", "cosine": down to 0
  int64_t warmup_steps = 0;
  int64_t batch_size = 8, epochs = 1, max_length = 1024;
  int64_t save_steps = 0, validation_steps = 0;  // every so many steps; 0: at the end alone
  uint64_t seed = 42;
  engine::EngineOptions engine;   // but model and device
  std::string command_to_resume;  // what the user types to resume after an interrupt
};

// Trains and saves; progress goes to standard error. Error kInvalid: data, model or output that
// cannot be used; kConflict: the output holds an earlier run, and neither overwrite nor resume is
// given, or resume is and that run was another; or an interrupt, after which the state was saved.
// From the first step on it decides what signals do (interrupts.h); once it ends with an error,
// that error's text is their last words, so that its catcher calls end_on_interrupt() anew.
void run_training(const TrainingOptions& options);

}  // namespace twinkle::cli
