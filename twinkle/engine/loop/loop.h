// A training loop beside its tenant: how many micro-batches a step takes, the optimizer's name and
// options, the schedule of its rate, and what has been counted. A plain value that knows neither
// the engine nor the tenant's weights: who drives a loop, a script or a service, submits the
// operations, and counts here those that have ended well. A copy taken before an operation is the
// loop without it. Saves carry its state() as their text. Not thread-safe.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "twinkle/base/json.h"
#include "twinkle/engine/protocol/operation.h"
#include "twinkle/optim/schedules/schedule.h"

namespace twinkle::engine {

// Micro-batches, steps, and what is known of the gradients that wait.
struct Progress {
  int64_t cur_step = 0;     // micro-batches, ever
  int64_t accumulated = 0;  // micro-batches since the last step
  int64_t iters = 0;        // optimizer steps
  int64_t lr_step = 0;      // steps of the schedule
  bool just_stepped = false;
  std::optional<double> grad_norm;     // the last step's, before clipping
  std::optional<double> clipped_norm;  // a ClipGradNorm's since the last micro-batch
};

class Loop {
 public:
  static constexpr double kDefaultLr = 1e-5;
  static constexpr int64_t kStateVersion = 2;  // state()'s, the only one that is read

  Loop();  // AdamW at kDefaultLr, a constant rate, a step for each micro-batch

  // Settings. Error kInvalid of each: a name, an option or a number that cannot be; the loop stays
  // as it was.
  //
  // An optimizer of optim::make; without an option `lr` it is kDefaultLr.
  void set_optimizer(const std::string& name, const Json& options);
  // A schedule of optim::make_schedule, from its beginning.
  void set_schedule(const std::string& name, const Json& options);
  // A caller's own. `options` tell it from others of its name in saves.
  void set_schedule(const std::string& name, const Json& options, optim::Schedule rate);
  void set_accumulation(int64_t micro_batches);  // a step's, at least 1

  const std::string& optimizer() const { return optimizer_; }
  const Json& options() const { return options_; }
  const std::string& schedule() const { return schedule_; }  // empty: a constant rate
  const Json& schedule_options() const { return schedule_options_; }
  int64_t accumulation() const { return accumulation_; }
  const Progress& progress() const { return progress_; }

  // True: as many micro-batches are accumulated as one step takes.
  bool at_boundary() const { return progress_.accumulated >= accumulation_; }
  double lr() const;  // the next step's

  // The next step's optimizer and options, with those that are `given` (null: none) in place of the
  // loop's, from now on; a given lr takes the place of the schedule's once. Error kInvalid: an
  // option that the optimizer does not take.
  Step step(const Json& given = nullptr) const;
  double lr(const Json& given) const;  // that step's

  // Operations that have ended well.
  void add_micro_batch();
  void add_clip(double norm);
  // A step() with the same `given`. schedule_steps: by which the schedule goes on with it.
  void add_step(const Json& given, double norm, int64_t schedule_steps);
  void add_lr_step();       // after a step; otherwise nothing
  void forget_gradients();  // a ZeroGrad
  void forget_all();        // the tenant is as before its first step; settings stay
  void load_weights();      // a Load of weights alone

  // The text of a save: settings by name, and counters. consumed_samples: of the data, kept for
  // the caller, at least 0. Error kInvalid: it is below.
  Json state(int64_t consumed_samples) const;
  // Error kInvalid: a state() of another optimizer, schedule or schedule's options than this
  // loop's, of which moments and steps would mean nothing; options that the optimizer does not
  // take. An empty object passes.
  void check(const Json& state) const;
  // Takes a state that was checked: options, which stay where they are absent, and counters, which
  // are 0 then.
  void load(const Json& state);

 private:
  std::string optimizer_, schedule_;
  Json options_, schedule_options_;
  optim::Schedule rate_;  // empty: a constant one
  int64_t accumulation_ = 1;
  Progress progress_;
};

// The state() that a saved directory carries; an empty object where another program has saved a
// text of its own, or none, or there is no trainer_state.json. Error kInvalid: a damaged file,
// counters that cannot be; kVersioned: also a state of another format than kStateVersion.
enum class LoopFormat { kAny, kVersioned };
Json loop_state_in(const std::filesystem::path& directory, LoopFormat format);

}  // namespace twinkle::engine
