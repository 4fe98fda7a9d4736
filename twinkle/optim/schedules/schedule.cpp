#include "twinkle/optim/schedules/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "twinkle/optim/options.h"

namespace twinkle::optim {
namespace {

int64_t count_in(const Json& options, std::string_view owner, std::string_view key, int64_t low) {
  require(find(options, key), Code::kInvalid, "optim: ", owner, " needs ", key);
  const auto value = get<int64_t>(options, key);
  require(value >= low, Code::kInvalid, "optim: ", key, " of ", owner, " is ", value,
          ", it must be at least ", low);
  return value;
}

int64_t count_or(const Json& options, std::string_view owner, std::string_view key,
                 int64_t fallback) {
  return find(options, key) ? count_in(options, owner, key, 1) : fallback;
}

Schedule constant(const Json& json, std::string_view name) {
  check_known(json, name, {});
  return [](double base, int64_t) { return base; };
}

Schedule constant_factor(const Json& json, std::string_view name) {
  check_known(json, name, {"factor", "total_iters"});
  const double factor = number_in(json, name, "factor", 1.0 / 3, {.high = 1});
  const int64_t iters = count_or(json, name, "total_iters", 5);
  return [=](double base, int64_t step) { return step < iters ? base * factor : base; };
}

Schedule linear(const Json& json, std::string_view name) {
  check_known(json, name, {"start_factor", "end_factor", "total_iters"});
  const double start = number_in(json, name, "start_factor", 1.0 / 3, {.high = 1});
  const double end = number_in(json, name, "end_factor", 1, {.high = 1});
  const int64_t iters = count_or(json, name, "total_iters", 5);
  require(start > 0, Code::kInvalid, "optim: start_factor of ", name, " is ", start,
          ", it must be above 0");
  return [=](double base, int64_t step) {
    const auto done = static_cast<double>(std::min(step, iters));
    return base * (start + (end - start) * done / static_cast<double>(iters));
  };
}

Schedule steps(const Json& json, std::string_view name) {
  check_known(json, name, {"step_size", "gamma"});
  const int64_t size = count_in(json, name, "step_size", 1);
  const double gamma = number_in(json, name, "gamma", 0.1);
  return [=](double base, int64_t step) {
    return base * std::pow(gamma, static_cast<double>(step / size));
  };
}

Schedule exponential(const Json& json, std::string_view name) {
  check_known(json, name, {"gamma"});
  require(find(json, "gamma"), Code::kInvalid, "optim: ", name, " needs gamma");
  const double gamma = number_in(json, name, "gamma", 1);
  return
      [=](double base, int64_t step) { return base * std::pow(gamma, static_cast<double>(step)); };
}

Schedule cosine_annealing(const Json& json, std::string_view name) {
  check_known(json, name, {"T_max", "eta_min"});
  const int64_t period = count_in(json, name, "T_max", 1);
  const double low = number_in(json, name, "eta_min", 0);
  return [=](double base, int64_t step) {
    const double angle = std::numbers::pi * static_cast<double>(step) / static_cast<double>(period);
    return low + (base - low) * (1 + std::cos(angle)) / 2;
  };
}

struct Warmup {
  int64_t warmup, total;

  Warmup(const Json& json, std::string_view name)
      : warmup(count_in(json, name, "num_warmup_steps", 0)),
        total(count_in(json, name, "num_training_steps", 1)) {}

  bool active(int64_t step) const { return step < warmup; }
  double factor(int64_t step) const {
    return static_cast<double>(step + 1) / static_cast<double>(warmup);
  }
  // The share of the steps after the warm-up that has been taken; above 1 past num_training_steps.
  double progress(int64_t step) const {
    return static_cast<double>(step - warmup) /
           static_cast<double>(std::max<int64_t>(1, total - warmup));
  }
};

Schedule cosine_warmup(const Json& json, std::string_view name) {
  check_known(json, name, {"num_warmup_steps", "num_training_steps", "num_cycles"});
  const Warmup w(json, name);
  const double cycles = number_in(json, name, "num_cycles", 0.5);
  return [=](double base, int64_t step) {
    if (w.active(step)) return base * w.factor(step);
    const double angle = std::numbers::pi * cycles * 2 * w.progress(step);
    return base * std::max(0.0, 0.5 * (1 + std::cos(angle)));
  };
}

Schedule linear_warmup(const Json& json, std::string_view name) {
  check_known(json, name, {"num_warmup_steps", "num_training_steps"});
  const Warmup w(json, name);
  return [=](double base, int64_t step) {
    return base * (w.active(step) ? w.factor(step) : std::max(0.0, 1 - w.progress(step)));
  };
}

constexpr struct {
  std::string_view name;
  Schedule (*make)(const Json&, std::string_view);
} kKnown[] = {
#define SCHEDULE(name, function) {name, function},
#include "twinkle/optim/schedules/schedulers.def"
#undef SCHEDULE
};

}  // namespace

std::vector<std::string_view> schedule_names() {
  std::vector<std::string_view> out;
  for (const auto& schedule : kKnown) out.push_back(schedule.name);
  return out;
}

Schedule make_schedule(std::string_view name, const Json& options) {
  std::string known;
  for (const auto& schedule : kKnown) {
    if (schedule.name == name) return schedule.make(options, name);
    known += (known.empty() ? "" : ", ") + std::string(schedule.name);
  }
  fail(Code::kInvalid, "optim: unknown lr schedule '", name, "', known are ", known);
}

}  // namespace twinkle::optim
