// lr, also as "learning rate": of the last step, or the first; of several groups of parameters
// "learning rate(param group 1)" and so on; iters: optimizer steps so far; "total time elapse":
// seconds since the first batch; speed: steps per second and tokens/s: tokens per second, both
// since the last reset.
// Reads numbers: seq_tokens, tokens of the batch; started, seconds of the steady clock before it;
// lr. Without started: step, batches so far, which divided by gradient_accumulation_steps are the
// iters.
#include <algorithm>
#include <chrono>

#include "twinkle/metric/options.h"

namespace twinkle::metric {
namespace {

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class TrainMetric final : public Metric {
 public:
  explicit TrainMetric(const NoOptions&) {}

  void accumulate(const Batch& batch) override {
    const std::optional<double> started = batch.number("started");
    if (!started) count_steps(batch);
    const double begin = started ? *started : seconds_now();
    if (!first_) first_ = begin;
    if (!since_) since_ = begin;
    tokens_ += batch.number("seq_tokens").value_or(0);
    const Json* lr = batch.numbers.if_contains("lr");
    if (!started || iters_ == 0) lr_ = lr ? *lr : Json();
  }

  void on_step(const Step& step) override {
    lr_ = step.lr;
    iters_ = step.iters;
    ++steps_;
  }

  JsonObject calculate() const override {
    if (!first_) return {};
    const double now = seconds_now(), seconds = std::max(now - *since_, 1e-9);
    JsonObject out = rates();
    out["iters"] = iters_;
    out["total time elapse"] = now - *first_;
    out["speed"] = static_cast<double>(steps_) / seconds;
    out["tokens/s"] = tokens_ / seconds;
    return out;
  }

  void reset() override {
    steps_ = 0;
    tokens_ = 0;
    if (since_) since_ = seconds_now();
  }

 private:
  void count_steps(const Batch& batch) {
    const auto of = [&batch](const char* name, double otherwise) {
      return static_cast<int64_t>(batch.number(name).value_or(otherwise));
    };
    const int64_t accumulated = of("gradient_accumulation_steps", 1);
    require(accumulated >= 1, Code::kInvalid, "metric: gradient_accumulation_steps is ",
            accumulated, ", it must be an integer of at least 1");
    const int64_t iters = of("step", 0) / accumulated;
    steps_ += iters - iters_;
    iters_ = iters;
  }

  JsonObject rates() const {
    if (!lr_.is_array() || lr_.get_array().size() == 1) {
      const Json& rate = lr_.is_array() ? lr_.get_array()[0] : lr_;
      return JsonObject{{"lr", rate}, {"learning rate", rate}};
    }
    JsonObject out;
    for (const Json& rate : lr_.get_array())
      out["learning rate(param group " + std::to_string(out.size() + 1) + ")"] = rate;
    return out;
  }

  std::optional<double> first_, since_;  // seconds
  Json lr_;
  int64_t iters_ = 0, steps_ = 0;
  double tokens_ = 0;
};

}  // namespace

Kind train() {
  return kind_of<TrainMetric>(
      {.class_name = "TrainMetric",
       .numbers = {"seq_tokens", "started", "lr", "step", "gradient_accumulation_steps"}});
}

}  // namespace twinkle::metric
